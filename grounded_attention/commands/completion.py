# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Prints a completion script for your shell; it completes commands, options, choices and files.

The script is static, so a completion imports nothing. Print it again after an update.

examples:
  grounded-attention completion bash > ~/.local/share/bash-completion/completions/grounded-attention
  grounded-attention completion zsh > ~/.zfunc/_grounded-attention
"""

import argparse
from pathlib import Path
from typing import Annotated, Any

import shtab

from .command_line import Program
from .main import COMMANDS, GROUPS, PROGRAM, command_parser

# Arguments that are files, but do not have the type Path.
FILES = ("recipe", "image", "images", "model", "regions", "data_dir", "sources", "boxes")


def whole_parser() -> argparse.ArgumentParser:
    """One parser with all commands and groups, for tools that read a parser."""
    parser = argparse.ArgumentParser(prog=PROGRAM)
    parser.add_argument("--version", action="store_true")
    below = parser.add_subparsers()
    # shtab omits entries without help.
    groups = {name: below.add_parser(name, help=f"{name} ...").add_subparsers() for name in sorted(GROUPS)}
    for name, summary in COMMANDS.items():
        group, _, word = name.rpartition(" ")
        own = command_parser(name)
        for action in own._actions:
            if action.type is Path or action.dest in FILES:
                action.complete = shtab.FILE
        (groups[group] if group else below).add_parser(
            word, parents=[own], add_help=False, help=summary, conflict_handler="resolve"
        )
    return parser


def completion(shell: Annotated[str, shtab.SUPPORTED_SHELLS]) -> tuple[Any, str]:
    """Writes the script.

    Args:
        shell: the shell that completes
    """
    script = shtab.complete(whole_parser(), shell)
    return {"script": script}, script


main = Program("completion", completion)

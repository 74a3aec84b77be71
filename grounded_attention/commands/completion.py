# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Prints a completion script for your shell; it completes commands, options, choices and files.

The script is static, so a completion imports nothing. Print it again after an update.

examples:
  grounded-attention completion bash > ~/.local/share/bash-completion/completions/grounded-attention
  grounded-attention completion zsh > ~/.zfunc/_grounded-attention
"""

import argparse
import json
from importlib import import_module
from pathlib import Path

import shtab

from .command_line import make_main, make_parser
from .main import COMMANDS, GROUPS, PROGRAM

# Arguments that are files, but do not have the type Path.
FILES = ("recipe", "image", "images", "model", "regions", "data_dir", "sources", "boxes")


def whole_parser() -> argparse.ArgumentParser:
    """One parser with all commands and groups, for tools that read a parser."""
    parser = argparse.ArgumentParser(prog=PROGRAM)
    parser.add_argument("--version", action="store_true")
    below = parser.add_subparsers()
    # shtab omits entries without help.
    groups = {name: below.add_parser(name, help=f"{name} ...").add_subparsers() for name in sorted(GROUPS)}
    for name, command in COMMANDS.items():
        group, _, word = name.rpartition(" ")
        own = import_module(f"{__package__}.{command.module}").build_parser()
        for action in own._actions:
            if action.type is Path or action.dest in FILES:
                action.complete = shtab.FILE
        (groups[group] if group else below).add_parser(
            word, parents=[own], add_help=False, help=command.summary, conflict_handler="resolve"
        )
    return parser


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention completion", __doc__)
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)
    parser.add_argument("--json", action="store_true", help="print the script as JSON")
    return parser


def _work(options: argparse.Namespace) -> str:
    script = shtab.complete(whole_parser(), options.shell)
    return json.dumps({"script": script}) if options.json else script


main = make_main(build_parser, _work)

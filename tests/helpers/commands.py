# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""All programs: the commands of the package, and the benchmarks; what a command printed."""

import json
from pathlib import Path

from grounded_attention.commands.main import COMMANDS as NAMES
from grounded_attention.commands.main import module_name

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "grounded_attention" / "commands"


def is_program(path):
    """Whether a file can be run."""
    return '__name__ == "__main__"' in path.read_text(encoding="utf-8")


BENCHMARKS = sorted(f"benchmarks.{path.stem}" for path in (ROOT / "benchmarks").glob("*.py") if is_program(path))
# Name of a command after `grounded-attention` -> its module.
COMMANDS = {name: module_name(name) for name in NAMES}


def read_error(capsys):
    """The one line of a mistake, below bars of progress; nothing else is printed."""
    printed = capsys.readouterr()
    [line] = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert printed.out == ""
    assert "Traceback" not in printed.err
    assert printed.err.endswith(line + "\n")
    return line


def read_result(capsys):
    """What `--json` printed."""
    return json.loads(capsys.readouterr().out)

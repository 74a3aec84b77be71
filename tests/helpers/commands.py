# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""All programs: the commands of the package, and the benchmarks."""

from pathlib import Path

from grounded_attention.commands.main import COMMANDS as NAMES
from grounded_attention.commands.main import module_name

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "grounded_attention" / "commands"


def is_program(path: Path) -> bool:
    """Whether a file can be run."""
    return '__name__ == "__main__"' in path.read_text(encoding="utf-8")


BENCHMARKS = sorted(f"benchmarks.{path.stem}" for path in (ROOT / "benchmarks").glob("*.py") if is_program(path))
# Name of a command after `grounded-attention` -> its module.
COMMANDS = {name: module_name(name) for name in NAMES}

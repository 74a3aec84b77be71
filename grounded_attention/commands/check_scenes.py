# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures how hard the drawn scenes are, and prints a table.

The command reads the regions from the folder, and generates the scenes again from the seed in its scenes.json. For
scenes with combinations held out it also prints how many objects and captions have one, in train and val and in test.

examples:
  grounded-attention data check-scenes data/scenes
  grounded-attention data check-scenes data/scenes --json
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .command_line import make_parser, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a user error, which is one line on standard error."""
    return run(build_parser(), _work, arguments)


def _work(options: argparse.Namespace) -> str | None:
    from .check_scenes_work import work

    return work(options)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention data check-scenes", __doc__)
    parser.add_argument("folder", type=Path, help="folder that grounded-attention data scenes wrote")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Computes Q→A, QA→R and Q→AR from two runs of the task vcr.

One run has data.options.mode=answer, the other data.options.mode=rationale.

examples:
  grounded-attention join-vcr runs/vcr/none/items_validation.json runs/vcr_rationale/none/items_validation.json
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grounded_attention.utils.bounded_files import read_json

from .command_line import make_parser, one_line, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a user error, which is one line on standard error."""
    return run(build_parser(), _work, arguments)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention join-vcr", __doc__)
    parser.add_argument("answers", type=Path, help="items file of the run with mode=answer")
    parser.add_argument("rationales", type=Path, help="items file of the run with mode=rationale")
    parser.add_argument("--json", action="store_true", help="print the figures as a line of JSON")
    return parser


def _work(options: argparse.Namespace) -> str:
    from grounded_attention.tasks.vcr import join_runs

    try:
        figures = join_runs(*(_items(path) for path in (options.answers, options.rationales)))
    except (ValueError, KeyError) as error:
        raise ValueError(f"{options.answers}, {options.rationales}: {one_line(error)}") from error
    if options.json:
        return json.dumps(figures)
    return "\n".join(f"{name}: {value:.4g}" for name, value in figures.items())


def _items(path: Path) -> Any:
    try:
        return read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); expected the items_SPLIT.json of a run") from error


if __name__ == "__main__":
    sys.exit(main())

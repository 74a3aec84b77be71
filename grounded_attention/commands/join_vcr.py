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

from grounded_attention.dataset_scripts.files.records import Record
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
    answers, rationales = _items(options.answers), _items(options.rationales)
    from grounded_attention.tasks.vcr import join_runs  # it imports torch: wrong files are named before that

    try:
        figures = join_runs(answers, rationales)
    except ValueError as error:
        raise ValueError(f"{options.answers}, {options.rationales}: {one_line(error)}") from error
    if options.json:
        return json.dumps(figures)
    return "\n".join(f"{name}: {value:.4g}" for name, value in figures.items())


def _items(path: Path) -> dict[str, list[Any]]:
    """Reads the columns of a run's items; the test split has no labels."""
    try:
        content = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); expected the items_SPLIT.json of a run") from error
    record = Record(content, path, "the items", "give the items_SPLIT.json of a run of the task vcr")
    questions = record.texts("example_id")
    if not questions or len(set(questions)) < len(questions):
        raise record.error("bad example_id", found=questions, expected="the ids of questions, each once")
    columns = {"example_id": questions, "chosen": _numbers(record, "chosen", len(questions), int)}
    if "label" in content:
        columns["label"] = _numbers(record, "label", len(questions), int | None)
    return columns


def _numbers(record: Record, name: str, count: int, kind: Any) -> list[Any]:
    values = record.items(name)
    if len(values) != count or not all(isinstance(each, kind) and not isinstance(each, bool) for each in values):
        raise record.error(f"bad {name}", found=values, expected=f"{count} whole numbers, one for each question")
    return values


if __name__ == "__main__":
    sys.exit(main())

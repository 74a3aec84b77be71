# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Q→A, QA→R and Q→AR from two runs of the task vcr, for `grounded-attention evaluate --join-vcr`."""

from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.files.records import Record
from grounded_attention.utils.bounded_files import read_json

from .command_line import one_line


def join(answers: Path, rationales: Path) -> dict[str, float]:
    """The accuracies of the items files of both runs."""
    items = _items(answers), _items(rationales)
    from grounded_attention.tasks.vcr import join_runs  # it imports torch: wrong files are named before that

    try:
        return join_runs(*items)
    except ValueError as error:
        raise ValueError(f"{answers}, {rationales}: {one_line(error)}") from error


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

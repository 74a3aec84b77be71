# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Joins rows with their pseudo-labels, as they are joined with their regions."""

from collections.abc import Mapping, Sequence
from typing import Any

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.pseudo_labels.rows import check_labels
from grounded_attention.dataset_scripts.pseudo_labels.table import PseudoLabelTable
from grounded_attention.utils.boxes import check_shape

Row = Mapping[str, Any]


def join_labels(
    rows: Sequence[Row], table: PseudoLabelTable, records: Sequence[Any] | None = None, training: bool = True
) -> list[Row]:
    """
    Gives rows the phrases of their captions.
    """
    return [
        _join(row, table, None if records is None else records[place])
        if training or row.get("phrases") is None
        else row
        for place, row in enumerate(rows)
    ]


def _join(row: Row, table: PseudoLabelTable, record: Any) -> Row:
    labels = table[row["caption_id"]]
    try:
        check_labels(labels, row["text"])
    except DataError as error:
        raise DataError(str(error), file=table.path) from error
    if labels.image_id != row["image_id"]:
        problem, where = "the labels are those of another image", f"caption {labels.caption_id}"
        raise DataError(problem, file=table.path, where=where, found=labels.image_id, expected=repr(row["image_id"]))
    if record is not None and len(record):  # an image without detections may have no known size
        size = (labels.width, labels.height) if labels.width else None
        held, source = (record.width, record.height), f"pseudo-labels {table.path}"
        check_shape(size, held, labels.image_id, "region table", of=source)
    return {**row, "phrases": labels.phrases}


def check_label_rows(splits: Mapping[str, Any], trained: Sequence[str], table: PseudoLabelTable) -> None:
    """
    Checks before training that every caption that needs labels has some.
    """
    for name, rows in splits.items():
        if "caption_id" not in rows.column_names:
            expected, found = "rows of captions", ", ".join(rows.column_names)
            raise DataError("the rows have no column caption_id", found=found, expected=expected)
        if name not in trained and "phrases" in rows.column_names:
            continue
        missing = table.missing(rows["caption_id"])
        if missing:
            problem = f"{len(missing)} of {len(rows)} captions were never labelled"
            hint = (
                "label them with `grounded-attention data pseudo-ground`, with the same builder and options; or leave "
                "the split out with data.options.splits"
            )
            raise DataError(problem, file=table.path, where=f"split {name}", found=missing[0], hint=hint)

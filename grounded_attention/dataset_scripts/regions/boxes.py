# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes of images that are known before a detector runs, from a JSON file."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError, refuse_if
from grounded_attention.dataset_scripts.files.records import are_numbers
from grounded_attention.dataset_scripts.files.streaming import text_lines
from grounded_attention.utils.bounded_files import FileError, parse_json, read_json

_EXPECTED = (
    'an object {"image id": boxes, ...}, or a line {"image_id": ..., "boxes": boxes} for each image; boxes are lists '
    "[x1, y1, x2, y2] in pixels"
)
_KEYS = {"boxes", "scores", "labels"}


def read_boxes(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Reads the boxes of images from a JSON file.

    The file is one object from image id to boxes or to `{"boxes": ..., "scores": ..., "labels": ...}`, or JSON lines
    (.jsonl) with one image a line, which add its `image_id` to these fields.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingFileError("no such file", file=path, expected=_EXPECTED)
    records: dict[str, dict[str, Any]] = {}
    for where, image_id, record in _json_lines(path) if path.suffix == ".jsonl" else _json_object(path):
        refuse_if(image_id in records, "image id occurs twice", file=path, where=where, found=image_id)
        records[image_id] = _convert_record(path, where, record)
    refuse_if(not records, "no boxes", file=path, expected=_EXPECTED)
    return records


def _json_object(path: Path) -> Iterator[tuple[str, str, Any]]:
    try:
        pairs = read_json(path, object_pairs_hook=tuple)
    except FileError as error:
        raise DataError(str(error), expected=_EXPECTED) from error
    if not isinstance(pairs, tuple):
        raise DataError("not an object", file=path, expected=_EXPECTED)
    for image_id, record in pairs:
        refuse_if(not image_id, "an empty image id", file=path, expected=_EXPECTED)
        yield f"image {image_id}", image_id, record


def _json_lines(path: Path) -> Iterator[tuple[str, str, Any]]:
    for number, line in text_lines(path, _EXPECTED):
        if not line.strip():
            continue
        where = f"line {number}"
        try:
            pairs = parse_json(line, path, object_pairs_hook=tuple)
            image_id = dict(pairs)["image_id"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError("not a record", file=path, where=where, found=line, expected=_EXPECTED) from error
        if isinstance(image_id, bool) or not isinstance(image_id, str | int) or image_id == "":
            raise DataError("not an image id", file=path, where=where, found=image_id, expected="a text or a number")
        yield where, str(image_id), tuple(pair for pair in pairs if pair[0] != "image_id")


def _numbers(values: Any, depth: int) -> npt.NDArray[np.float32]:
    """An array of finite numbers in lists of this depth. NumPy alone would convert texts and truth values too."""
    flat = [values]
    for _ in range(depth):
        flat = [value for inner in flat for value in inner]
    if not are_numbers(flat, len(flat)):
        raise ValueError("not a finite number of 32 bits")
    return np.asarray(values, dtype=np.float32)


def _convert_record(path: Path, where: str, record: Any) -> dict[str, Any]:
    """Returns a record with its boxes as an array. Objects are tuples of pairs, so that repeated keys are found."""
    is_object = isinstance(record, tuple)
    fields = dict(record) if is_object else {"boxes": record}
    if "boxes" not in fields or set(fields) - _KEYS or (is_object and len(fields) < len(record)):
        raise DataError("not a record of boxes", file=path, where=where, found=fields, expected=_EXPECTED)
    try:
        boxes = _numbers(fields["boxes"], 2).reshape(len(fields["boxes"]), 4)
        scores = None if fields.get("scores") is None else _numbers(fields["scores"], 1)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError("boxes are not numbers", file=path, where=where, found=fields, expected=_EXPECTED) from error
    reversed_ = (boxes[:, 2:] < boxes[:, :2]).any(axis=1)
    if reversed_.any():
        found = boxes[reversed_][0].tolist()
        raise DataError("a box ends before it begins", file=path, where=where, found=found, expected=_EXPECTED)
    labels = fields.get("labels")
    if scores is not None and scores.shape != (len(boxes),):
        raise DataError(
            "the number of scores is not the number of boxes",
            file=path,
            where=where,
            found=scores.shape,
            expected=f"{len(boxes)}",
        )
    if labels is not None and not (
        isinstance(labels, list) and len(labels) == len(boxes) and all(isinstance(label, str) for label in labels)
    ):
        raise DataError(
            "the number of labels is not the number of boxes, or a label is not a text",
            file=path,
            where=where,
            found=labels,
            expected=f"{len(boxes)} texts",
        )
    checked = {"boxes": boxes, "scores": scores, "labels": labels}
    return {name: value for name, value in checked.items() if value is not None}

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes of images that are known before a detector runs, from a JSON file."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grounded_attention.dataset_scripts.files.errors import (
    DataError,
    data_file,
    refuse_if,
    require_file,
)
from grounded_attention.dataset_scripts.files.records import MAX_FLOAT32, json_lines
from grounded_attention.utils.bounded_files import parse_json, read_json, unique_keys
from grounded_attention.utils.named_types import AnyPath, Fields

_EXPECTED = (
    'an object {"image id": boxes, ...}, or a line {"image_id": ..., "boxes": boxes} for each image; boxes are lists '
    "[x1, y1, x2, y2] in pixels"
)
_Number = Annotated[float, Field(ge=-MAX_FLOAT32, le=MAX_FLOAT32)]
_Box = Annotated[list[_Number], Field(min_length=4, max_length=4)]


class _Record(BaseModel):
    """The boxes of one image."""

    model_config = ConfigDict(strict=True, extra="forbid")

    boxes: list[_Box]
    scores: list[_Number] | None = None
    labels: list[str] | None = None


def read_boxes(path: AnyPath) -> dict[str, Fields]:
    """Reads the boxes of images from a JSON file.

    The file is one object from image id to boxes or to `{"boxes": ..., "scores": ..., "labels": ...}`, or JSON lines
    (.jsonl) with one image a line, which add its `image_id` to these fields.
    """
    path = Path(path)
    require_file(path, expected=_EXPECTED)
    records: dict[str, Fields] = {}
    for where, image_id, record in _json_lines(path) if path.suffix == ".jsonl" else _json_object(path):
        refuse_if(image_id in records, "image id occurs twice", file=path, where=where, found=image_id)
        records[image_id] = _convert_record(path, where, record)
    refuse_if(not records, "no boxes", file=path, expected=_EXPECTED)
    return records


def _json_object(path: Path) -> Iterator[tuple[str, str, Any]]:
    with data_file(path, f"expected {_EXPECTED}"):
        content = read_json(path, object_pairs_hook=unique_keys)
    if not isinstance(content, dict) or "" in content:
        raise DataError("not an object, or an empty image id", file=path, expected=_EXPECTED)
    for image_id, record in content.items():
        yield f"image {image_id}", image_id, record


def _json_lines(path: Path) -> Iterator[tuple[str, str, Any]]:
    for record in json_lines(path, _EXPECTED, partial(parse_json, object_pairs_hook=unique_keys)):
        if isinstance(record.values, dict):
            image_id = record.values.pop("image_id", None)
        else:
            image_id = None
        if isinstance(image_id, bool) or not isinstance(image_id, str | int) or image_id == "":
            raise record.error("not an image id", found=image_id, expected="a text or a number as image_id")
        yield record.where, str(image_id), record.values


def _convert_record(path: Path, where: str, record: Any) -> Fields:
    """Returns a record with its boxes as an array."""
    try:
        read = _Record.model_validate(record if isinstance(record, dict) else {"boxes": record})
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"not a record of boxes: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise DataError(problem, file=path, where=where, found=first["input"], expected=_EXPECTED) from error
    boxes = np.array(read.boxes, np.float32).reshape(-1, 4)
    reversed_ = (boxes[:, 2:] < boxes[:, :2]).any(axis=1)
    if reversed_.any():
        found = boxes[reversed_][0].tolist()
        raise DataError("a box ends before it begins", file=path, where=where, found=found, expected=_EXPECTED)
    for name, values in (("scores", read.scores), ("labels", read.labels)):
        if values is not None and len(values) != len(boxes):
            problem = f"the number of {name} is not the number of boxes"
            raise DataError(problem, file=path, where=where, found=len(values), expected=f"{len(boxes)}")
    converted: Fields = {"boxes": boxes}
    if read.scores is not None:
        converted["scores"] = np.array(read.scores, np.float32)
    if read.labels is not None:
        converted["labels"] = read.labels
    return converted

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Files of VCR: lines of questions, and for each image a file with the boxes of its objects."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.files.errors import data_file, refuse_if
from grounded_attention.dataset_scripts.files.records import Record, are_numbers, json_lines
from grounded_attention.utils.bounded_files import parse_json, read_text
from grounded_attention.utils.boxes import look_normalised

HOMEPAGE = "https://visualcommonsense.com"
HINT = (
    "get annotations and images through the form on https://visualcommonsense.com/download; unpack both in one folder"
)


@dataclass(frozen=True)
class ImageObjects:
    """The content of the file that belongs to an image."""

    file: Path
    width: int
    height: int
    names: list[str]
    boxes: list[list[float] | None]
    clipped: int

    @property
    def filled_boxes(self) -> list[list[float]]:
        """The boxes; an object without one has the box of the whole image."""
        return [[0.0, 0.0, self.width, self.height] if box is None else box for box in self.boxes]


def read_questions(path: Path) -> Iterator[Record]:
    """Reads the records of a file of questions, one a line."""
    seen: set[str] = set()
    for record in json_lines(path, HINT, _decode):
        annot_id = record.non_empty_text("annot_id")
        record.add_once(annot_id, seen, "the question occurs twice", "unique values of annot_id")
        yield record
    refuse_if(not seen, "no questions", file=path, expected="a question a line", hint=HINT)


def read_objects(path: Path) -> ImageObjects:
    """Reads the boxes and categories of an image's objects; ignores the fifth number, the score."""
    with data_file(path, HINT, "the file with the boxes of an image is missing"):
        record = Record(_decode(read_text(path), path), path, "image", HINT)
    width, height, names = (
        record.integer("width", minimum=1),
        record.integer("height", minimum=1),
        record.texts("names"),
    )
    if not all(name.strip() for name in names):
        raise record.error("bad names", found=names, expected="the category of each object")
    boxes_in_file = record.items("boxes")
    if len(boxes_in_file) > len(names):
        raise record.error("more boxes than names", found=len(boxes_in_file), expected=str(len(names)))
    boxes = [_corners(record, place, box) for place, box in enumerate(boxes_in_file)]
    if look_normalised([box for box in boxes if box is not None], width, height):
        raise record.error("the boxes look normalised", found=boxes[:2], expected="x1, y1, x2, y2 in pixels")
    inside = [None if box is None else _inside(box, width, height) for box in boxes]
    clipped = sum(after is not None and before != after for before, after in zip(boxes, inside, strict=True))
    return ImageObjects(path, width, height, names, inside + [None] * (len(names) - len(inside)), clipped)


def _inside(box: list[float], width: int, height: int) -> list[float] | None:
    clipped = [min(max(value, 0), limit) for value, limit in zip(box, (width, height) * 2, strict=True)]
    return clipped if clipped[2] - clipped[0] >= 1 and clipped[3] - clipped[1] >= 1 else None


def _corners(record: Record, place: int, box: Any) -> list[float] | None:
    """Returns the four corners; None without a box."""
    if box is None or box == []:
        return None
    expected = "x1, y1, x2, y2 in pixels, and optionally a score"
    record.refuse_if(not are_numbers(box, 4, 5), f"bad box {place}", found=box, expected=expected)
    record.refuse_if(box[2] < box[0] or box[3] < box[1], f"box {place} is inverted", found=box, expected=expected)
    return box[:4]


def _decode(text: str, place: object) -> Any:
    return parse_json(text, place, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")

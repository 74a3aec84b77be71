# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The files of VCR: lines of questions, and beside each image a file with its objects' boxes."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.files.records import Record
from grounded_attention.dataset_scripts.files.streaming import text_lines

HOMEPAGE = "https://visualcommonsense.com"
HINT = "get annotations and images by the form on https://visualcommonsense.com/download and unpack both in one folder"


@dataclass(frozen=True)
class ImageObjects:
    """What the file beside an image says.

    Args:
        file: The file.
        width: In pixels.
        height: In pixels.
        names: The category of each object.
        boxes: x1, y1, x2, y2 of each object in pixels, within the image; None for an object without a box, or with one
            that holds no pixel.
        clipped: How many boxes went beyond the image.
    """

    file: Path
    width: int
    height: int
    names: list[str]
    boxes: list[list[float] | None]
    clipped: int

    @property
    def filled_boxes(self) -> list[list[float]]:
        """The boxes, that of the whole image for an object without one."""
        return [[0.0, 0.0, self.width, self.height] if box is None else box for box in self.boxes]


def read_questions(path: Path) -> Iterator[Record]:
    """The records of a file of questions, one a line.

    Raises:
        MissingFileError: There is no such file.
        DataError: A line is no JSON, or a question occurs twice; the message names the line.
    """
    seen: set[str] = set()
    for number, line in text_lines(path, HINT):
        if not line.strip():
            continue
        where = f"line {number}"
        record = Record(_decode(line, path, where), path, where, HINT)
        annot_id = record.non_empty_text("annot_id")
        if annot_id in seen:
            raise record.error("a question twice", found=annot_id, expected="an annot_id of its own for each")
        seen.add(annot_id)
        yield record
    if not seen:
        raise DataError("no questions", file=path, expected="a question a line", hint=HINT)


def read_objects(path: Path) -> ImageObjects:
    """The boxes and categories of an image's objects; a box's fifth number, the detector's score, is left out.

    Raises:
        MissingFileError: There is no such file.
        DataError: It is no JSON, or a box is no box.
    """
    if not path.is_file():
        raise MissingFileError("the boxes of an image are missing", file=path, hint=HINT)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError("not valid UTF-8", file=path, found=str(error), hint=HINT) from None
    record = Record(_decode(text, path, None), path, "image", HINT)
    width, height, names = (
        record.integer("width", minimum=1),
        record.integer("height", minimum=1),
        record.items("names"),
    )
    if not all(isinstance(name, str) and name.strip() for name in names):
        raise record.error("bad names", found=names, expected="the category of each object")
    given = record.items("boxes")
    if len(given) > len(names):
        raise record.error("more boxes than names", found=len(given), expected=str(len(names)))
    boxes = [_corners(record, place, box) for place, box in enumerate(given)]
    inside = [None if box is None else _inside(box, width, height) for box in boxes]
    clipped = sum(after is not None and before != after for before, after in zip(boxes, inside, strict=True))
    return ImageObjects(path, width, height, names, inside + [None] * (len(names) - len(inside)), clipped)


def _inside(box: list[float], width: int, height: int) -> list[float] | None:
    clipped = [min(max(value, 0), limit) for value, limit in zip(box, (width, height) * 2, strict=True)]
    return clipped if clipped[2] - clipped[0] >= 1 and clipped[3] - clipped[1] >= 1 else None


def _corners(record: Record, place: int, box: Any) -> list[float] | None:
    """The four corners; None where there is no box."""
    if box is None or box == []:
        return None
    expected = "x1, y1, x2, y2 in pixels, and perhaps a score"
    is_list = isinstance(box, list) and len(box) in (4, 5)
    if not is_list or not all(isinstance(value, int | float) and not isinstance(value, bool) for value in box):
        raise record.error(f"bad box {place}", found=box, expected=expected)
    if box[2] < box[0] or box[3] < box[1]:
        raise record.error(f"box {place} is inverted", found=box, expected=expected)
    return box[:4]


def _decode(text: str, file: Path, where: str | None) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DataError("not JSON", file=file, where=where, found=str(error), hint=HINT) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")

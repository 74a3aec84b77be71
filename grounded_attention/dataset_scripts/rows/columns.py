# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Columns of a record: its pictures, id, boxes and further values, as the readers of all shapes take them."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from grounded_attention.utils.named_types import Columns, Fields

from .masks import find_mask
from .pictures import without_object
from .raw import (
    BOX_NAMES,
    SIDE_NAMES,
    Boxes,
    Phrases,
    RawBox,
    RawPhrase,
    RawRow,
    RowError,
    Rows,
    as_path,
    first_of,
    named_sides,
    open_scale,
    read_boxes,
    size_of,
    structured,
    trimmed,
)
from .readings import PIXELS, Reading, Readings
from .report import RowsReport

XYXY_PIXELS = (Reading("xyxy", PIXELS),)
XYWH_PIXELS = (Reading("xywh", PIXELS),)
XYXY_SHARES = (Reading("xyxy", 1.0),)
XYWH_SHARES = (Reading("xywh", 1.0),)

IMAGE_NAMES = (
    "original_images", "original_image", "images", "image", "img", "picture", "photo", "image_path", "img_path",
    "image_file", "image_file_name", "filepath", "img_filename", "image_filename", "filename", "file_name", "file",
    "image_url", "img_url", "url", "imagePath", "path",
)  # fmt: skip
_FURTHER_NAME = re.compile(r"(?!image_file)\w+_file_names?")
_FURTHER_IMAGE = re.compile(r"image_\d|\w+_file_names?")
TEXT_NAMES = (
    "text", "caption", "captions", "sentences", "sentence", "expressions", "expression", "referring_expression",
    "refexp", "ref", "answer", "phrase", "description", "instruction", "query", "prompt", "label", "raw_sentences",
    "title", "name", "category", "positive", "class", "class_name", "category_name",
)  # fmt: skip


# What may stand beside a box and is no part of a phrase.
_BESIDE = ("score", "confidence", "track_id", "iscrowd", "is_crowd", "occluded", "truncated", "difficult", "keypoints",
           "ignore", "ignored", "rejected", "deleted")  # fmt: skip
LONGEST_TEXT = 1000  # characters of a further column that is kept
_TURNED = ("angle", "rotation", "theta")
_NOTHING: tuple[Any, ...] = (None, False, 0, "", "0", [], "false", "False")


@dataclass
class Context:
    """What a reader of a shape may need beside the row."""

    kind: str  # The format, or the repository, of the source
    readings: Readings  # How the format writes boxes
    # Column, or column and key -> number -> name of a class
    classes: Mapping[str, Mapping[Any, str]]
    report: RowsReport
    where: str = ""  # The place of the record

    def leave_out(self, what: str, count: int = 1) -> None:
        """Counts something that is not read."""
        for _ in range(count):
            self.report.drop(what, self.where)

    def note_beside(self, record: Columns) -> None:
        """Counts what stands beside a box and is not read."""
        for key in _BESIDE:
            self.leave_out(f"{key} beside a box (the box stays)", record.get(key) not in _NOTHING)
        status = str(record.get("status")).lower()
        self.leave_out(f"status {status} beside a box (the box stays)", status in ("rejected", "deleted"))


def images_of(record: Columns) -> list[Any]:
    """The pictures of a record, as they are given."""
    name = first_of(record, IMAGE_NAMES)
    if name is None:  # pictures in columns of their own, as an image folder may have them, or a name without suffix
        several = _named_so(record, _FURTHER_IMAGE)
        return several or ([str(record["image_id"])] if record.get("image_id") is not None else [])
    value = record[name]
    if name == "file_name" and (further := _named_so(record, _FURTHER_NAME)):  # an image folder may have further ones
        value = [value, *further]
    if isinstance(value, str) and value.strip().startswith("["):
        value = structured(value, name)
    if isinstance(value, (list, tuple)):
        # Visual-CoT names a part of a picture by `###[x1, y1, x2, y2]`; it is no picture of its own.
        return [each for each in value if each is not None and not (isinstance(each, str) and "###[" in each)]
    # LLaVA writes rows of text alone so
    if isinstance(value, str) and not value:
        return []
    return [value]


def _named_so(record: Columns, pattern: re.Pattern[str]) -> list[Any]:
    """The values of all columns of such a name; lists are several."""
    values = []
    for key, value in record.items():
        if pattern.fullmatch(key) and value is not None:
            values.append(value)
    return [*chain(*(each if isinstance(each, list) else [each] for each in values))]


def id_of(record: Columns, images: list[Any]) -> str | None:
    """The id of the picture: a column with it, or the name of its file without the suffix."""
    name = first_of(record, ("image_id", "img_id", "imageId", "global_image_id"))
    if name is not None and not isinstance(record[name], (list, Mapping)):
        return str(record[name])
    path = as_path(images[0]) if images else None
    path = without_object(path or as_path(record.get("file_name")) or "")
    return path.replace("\\", "/").rsplit(".", 1)[0].lstrip("./") or None


def make_row(record: Columns, texts: Columns, phrases: Phrases, **known: Any) -> RawRow:
    """A row with the pictures, the size, the id and the further columns of a record."""
    images = known.pop("images", None) or images_of(record)
    more: Fields = {}
    for key, value in record.items():
        # A number or a text that is not long; of pictures the name of a file.
        is_picture = key in IMAGE_NAMES and key != "file_name"
        is_long = isinstance(value, str) and len(value) > LONGEST_TEXT
        if isinstance(value, (str, int, float)) and not is_picture and not is_long:
            more[key] = value
    if isinstance(record.get("answers"), list):  # of several people
        more["answers"] = []
        for answer in record["answers"]:
            text = answer.get("answer") if isinstance(answer, Mapping) else answer
            more["answers"].append(str(text))
    return RawRow(images, texts, phrases, known.pop("size", None) or size_of(record), id_of(record, images), more)


def boxes_of(record: Columns, readings: Readings = ()) -> Boxes:
    """The boxes of a record: of a column of them, or of four columns with a side each; and its masks."""
    name = first_of(record, BOX_NAMES)
    if name is None:
        boxes = []
    else:
        boxes = read_boxes(record[name], name, readings)
    if name is None and (known := named_sides(record)):
        order, sides = known
        if sides[2:] == ("width", "height") and first_of(record, IMAGE_NAMES):
            raise RowError(
                "columns that are a box, or a point and the size of the picture",
                found=", ".join(sides),
                expected=f"columns={{'boxes': {[*sides]}}} or columns={{'boxes': {[*sides[:2]]}}}",
            )
        boxes = read_boxes([record[side] for side in sides], ", ".join(sides), readings or open_scale(order))
    if boxes and (turned := next((key for key in _TURNED if record.get(key) not in _NOTHING), None)):
        raise RowError(
            f"{turned} beside a box", found=record[turned], expected="the upright box around it, without this key"
        )
    mask, hull = find_mask(record) or (None, None)
    if not boxes and hull is not None and record.keys().isdisjoint(BOX_NAMES):
        return [RawBox(list(hull), XYXY_PIXELS, mask=mask)]
    if len(boxes) == 1:
        boxes[0].hull = hull
        boxes[0].mask = mask
        area = record.get("area", record.get("bbox_area"))
        if not isinstance(area, bool):
            with suppress(TypeError, ValueError):
                boxes[0].area = float(area)  # a text in CSV
    return boxes


def has_boxes(record: Columns) -> bool:
    """Whether a record has boxes of its own."""
    sides_of_one = (sides for _, sides in SIDE_NAMES if record.keys() >= {*sides})
    return not record.keys().isdisjoint(BOX_NAMES) or any(sides_of_one)


def each_text(record: Columns, texts: list[str], boxes: Boxes, types: Sequence[str] = (), **known: Any) -> Rows:
    """A row for each text, all of which mean the same boxes."""
    for text in texts:
        start, end = trimmed(text, 0, len(text))
        phrase = RawPhrase(text[start:end], boxes, start, end, 0, types=types)
        yield make_row(record, {"text": text}, [phrase], **known)

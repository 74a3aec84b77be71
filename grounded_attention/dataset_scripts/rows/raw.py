# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows before their boxes are read: what the readers of shapes return, and what they share."""

import ast
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if
from grounded_attention.processing.phrase import known_values
from grounded_attention.utils.named_types import Columns, Fields, Size, Span

from .readings import PIXELS, Reading, Readings


def around(
    points: Iterable[Sequence[float]],
    degrees: float = 0,
    pivot: Sequence[float] | None = None,
    size: Sequence[float] | None = None,
) -> list[float]:
    """The box around points. Those that are turned about their middle or `pivot` are cut at the edge of a picture of
    this size, which their box may leave where the thing itself does not."""
    corners = np.array([*points], dtype=np.float64)  # (P, 2)
    if degrees:
        cos = np.cos(np.radians(degrees))
        sin = np.sin(np.radians(degrees))
        if pivot is None:
            middle = corners.mean(axis=0)
        else:
            middle = np.array(pivot)
        corners = np.clip((corners - middle) @ [[cos, sin], [-sin, cos]] + middle, 0, size)
    return [*map(float, corners.min(axis=0)), *map(float, corners.max(axis=0))]


def hull(numbers: Sequence[Any]) -> list[float]:
    """The box around corners x, y, x, y ..."""
    return around(zip(numbers[::2], numbers[1::2], strict=True))


def corners_of(x: float, y: float, width: float, height: float) -> list[tuple[float, float]]:
    """The corners of an upright rectangle."""
    return [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]


# Names of columns with four numbers, or with lists of them, in the order in which they are looked for.
BOX_NAMES = (
    "boxes", "box", "bbox", "bboxs", "bboxes", "box_coordinates", "bbox_2d", "box_2d", "bounding_box",
    "bounding_boxes", "gt_bbox", "bbox_gt", "proposal",
)  # fmt: skip
# Names of the four sides, the order that they say, and whether the scale of a value up to 1 is open.
SIDE_NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("corners", ("x1", "y1", "x2", "y2", "x3", "y3", "x4", "y4")),
    ("xyxy", ("x1", "y1", "x2", "y2")),
    ("xyxy", ("xmin", "ymin", "xmax", "ymax")),
    ("xyxy", ("x_min", "y_min", "x_max", "y_max")),
    ("xyxy", ("left", "top", "right", "bottom")),
    ("xyxy", ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")),
    ("xywh", ("bbox_x", "bbox_y", "bbox_w", "bbox_h")),
    ("xywh", ("left", "top", "width", "height")),
    ("xywh", ("x", "y", "width", "height")),
    ("xywh", ("x", "y", "w", "h")),
    ("cxcywh", ("cx", "cy", "w", "h")),
)
# Columns of lists or mappings, which CSV and some Parquet files have as texts of JSON.
NESTED = ("phrases", "entities", "samples", "refs", "elements", "regions", "boxes", "bboxes", "labels", "categories")
NAME_NAMES = (
    "phrase", "text", "ref", "expression", "caption", "instruction", "category_name", "class_name", "category",
    "categories", "label", "labels", "class", "name", "classes",
)  # fmt: skip


@dataclass
class RawBox:
    """Four numbers, or two of a point, as they are written."""

    numbers: list[float]
    readings: Readings = ()  # What they may mean by where they stand; none: not known
    area: float | None = None  # The area in pixels that the row says
    hull: Sequence[float] | None = None  # Corners in pixels of its mask or polygon
    mask: Any = None  # Its mask, as `find_mask` returns it


Boxes = list[RawBox]


@dataclass
class RawPhrase:
    """A phrase with boxes as they are written; the other fields are those of `Phrase`. None as `image` says nothing of
    it: the only picture is meant."""

    text: str = ""
    boxes: Boxes = field(default_factory=list)
    start: int | None = None
    end: int | None = None
    sentence: int | None = None
    image: int | None = None
    weight: float | None = None
    entity: str | None = None
    types: Sequence[str] = ()
    scores: Sequence[float] | None = None
    regions: Sequence[int] | None = None
    mask: Any = None


Phrases = list[RawPhrase]
MOST_BOXES = 2**16  # in one column: pictures of crowds have some 20,000
# What phrases of other forms call their keys.
_OTHER_KEYS = {"phrase": "text", **dict.fromkeys(("bbox", "box", "bboxes"), "boxes")}


@dataclass
class RawRow:
    """A row with its pictures as they are given, its texts, phrases, and what else it has."""

    images: list[Any]  # The pictures: paths, bytes, mappings, PIL images or arrays
    texts: Columns  # `{"text": ...}`, `{"captions": [...]}` or `{"messages": [...]}`
    phrases: Phrases = field(default_factory=list)
    size: Size | None = None  # Width and height to which boxes in pixels refer, if the row says it
    image_id: str | None = None
    more: Fields = field(default_factory=dict)  # Other columns that are kept
    split: str = ""
    file: Path | None = None  # The file that has it
    where: str = ""  # Its place there


Rows = Iterator[RawRow]


class RowError(DataError):
    """A row that cannot be read; the reader adds the file and the row."""


def plain(value: Any) -> Any:
    """Numpy values, decimals and tuples as plain Python; a picture as it is."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray):
        is_picture = value.dtype in (np.uint8, np.bool_) and value.ndim > 1
        if is_picture:
            return value
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Decimal):
        return float(value)
    if hasattr(value, "detach"):  # a tensor
        return plain(value.detach().cpu().numpy())
    return value


def structured(value: Any, name: str) -> Any:
    """A column that may be written as a text of JSON, or of a Python list."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if not text:
        return None
    if text[0] not in "[{(":
        return value
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise RowError(f"{name} is neither JSON nor a list", found=value, expected="[...] or {...}") from None


def items(value: Any, name: str) -> list[Columns]:
    """The entries of a list of mappings, or of a mapping of lists."""
    value = structured(value, name)
    if value is None or value == {}:
        return []
    if isinstance(value, Mapping):
        lists = {key: each for key, each in value.items() if isinstance(each, list)}
        if not lists:
            return [dict(value)]
        lengths = {key: len(each) for key, each in lists.items() if each or key in BOX_NAMES}
        refuse_if(
            len(set(lengths.values())) > 1,
            f"{name}: lists of several lengths",
            RowError,
            found=lengths,
            expected="one entry for each object",
        )
        number = next(iter(lengths.values()), 0)
        return [{key: each[i] for key, each in lists.items() if i < len(each)} for i in range(number)]
    if isinstance(value, list) and all(isinstance(each, Mapping) for each in value):
        return value
    raise RowError(f"bad {name}", found=value, expected="a list of objects, or an object of lists")


def first_of(record: Columns, names: Sequence[str]) -> str | None:
    """The first of some columns that has a value."""
    return next((name for name in names if record.get(name) is not None), None)


def found_in(record: Columns, names: Sequence[str], problem: str, expected: str) -> str:
    """The first of some columns that has a value, or the error that none has."""
    name = first_of(record, names)
    if name is None:
        raise RowError(problem, found=record, expected=expected)
    return name


def a_text(value: Any, name: str) -> str:
    """A value that is a text, or the error that it is none."""
    if not isinstance(value, str):
        raise RowError(f"bad {name}", found=value, expected="a text")
    return value


def read_boxes(value: Any, name: str, readings: Readings = ()) -> Boxes:
    """One box, a list of boxes, a text of them, or mappings with named sides; none for null or an empty list."""
    value = structured(value, name)
    if isinstance(value, str):
        value = value.replace(",", " ").replace(";", " ").split()
    if value is None or value == []:
        return []
    if isinstance(value, Mapping):
        return [_box_of_sides(value, name, readings)]
    if not isinstance(value, list) or len(value) > MOST_BOXES:
        raise RowError(f"bad {name}", found=value, expected=f"x, y, x, y, or a list of at most {MOST_BOXES} boxes")
    if isinstance(value[0], (list, Mapping)) or value[0] is None:
        boxes = []
        for each in value:
            boxes.extend(read_boxes(each, name, readings))
        if name in BOX_NAMES:
            lengths = {len(each.numbers) for each in boxes}
        else:
            lengths = set()
        if lengths == {2} and len(boxes) > 1 and all(map(_is_bare_point, value)):
            return [_around_corners([*chain(*(each.numbers for each in boxes))], name, readings)]
        refuse_if(
            len(lengths) > 1,
            f"bad {name}",
            RowError,
            found=value,
            expected="boxes of four numbers, or points, and not both",
        )
        return boxes
    return [_around_corners(value, name, readings) if len(value) == 8 else RawBox(_numbers(value, name), readings)]


def _is_bare_point(value: Any) -> bool:
    """Whether a value is x and y and nothing else: two of them are corners, and things with a score are not."""
    if isinstance(value, Mapping):
        return value.keys() == {"x", "y"}
    return isinstance(value, list) and len(value) == 2


def _around_corners(value: Sequence[Any], name: str, readings: Readings) -> RawBox:
    """The box around corners x, y, x, y ...; a known scale stays, and a known order says nothing of corners."""
    numbers = []
    for i in range(0, len(value), 2):
        numbers.extend(_numbers(value[i : i + 2], name))
    scales = dict.fromkeys(each.scale for each in readings) or (PIXELS, 1.0)
    corners = tuple(Reading("corners", scale) for scale in scales)
    return RawBox(hull(numbers), corners)


def _numbers(value: Sequence[Any], name: str) -> list[float]:
    try:
        numbers = []
        for each in value:
            numbers.append(math.nan if isinstance(each, bool) else float(each))
    except (TypeError, ValueError, OverflowError):
        numbers = [math.nan]
    refuse_if(not all(map(math.isfinite, numbers)), f"bad {name}", RowError, found=value, expected="finite numbers")
    refuse_if(
        len(numbers) not in (2, 4),
        f"bad {name}",
        RowError,
        found=value,
        expected="four numbers of a box, or the two of a point",
    )
    return numbers


def span_phrases(value: Any, text: str, boxes: Boxes, name: str) -> Phrases:
    """A phrase for each run of characters, `[[15, 20], [39, 44]]` or `[15, 20]`; those that blanks part are one."""
    spans = structured(value, name)
    if isinstance(spans, list) and not any(isinstance(each, list) for each in spans):
        spans = [spans[i : i + 2] for i in range(0, len(spans), 2)]
    runs: list[list[int]] = []
    for span in spans if isinstance(spans, list) else [spans]:
        start = end = 0
        if isinstance(span, list) and len(span) == 2:
            start, end = (_whole(edge, name) for edge in span)
        if end > len(text) or not text[start:end].strip():
            expected = f"the first character of a phrase, and the one behind it, of a text of {len(text)}"
            raise RowError(f"bad {name}", found=span, expected=expected)
        if runs and runs[-1][1] <= start and not text[runs[-1][1] : start].strip():
            runs[-1][1] = end
        else:
            runs.append([start, end])
    spans = [trimmed(text, start, end) for start, end in runs]  # those of a parser may begin or end with a blank
    return [RawPhrase(text[start:end], boxes, start, end, 0) for start, end in spans]


def trimmed(text: str, start: int, end: int) -> Span:
    """Characters of a text without the blanks around them; none if there are only blanks."""
    words = text[start:end]
    first = start + len(words) - len(words.lstrip())
    return first, first + len(words.strip())


def open_scale(order: str) -> Readings:
    """In pixels, or shares of the picture: where the names of sides say the order alone."""
    return Reading(order, PIXELS), Reading(order, 1.0)


def named_sides(value: Columns) -> tuple[str, tuple[str, ...]] | None:
    """The order and the names of the four sides that a record has."""
    for order, sides in SIDE_NAMES:
        if all(value.get(side) is not None for side in sides):
            return order, sides
    return None


def _box_of_sides(value: Columns, name: str, readings: Readings) -> RawBox:
    known = named_sides(value)
    if known:
        order, sides = known
        return read_boxes([value[side] for side in sides], name, readings or open_scale(order))[0]
    if value.get("x") is not None and value.get("y") is not None:
        return RawBox(_numbers([value["x"], value["y"]], name), readings)
    raise RowError(f"bad {name}", found=value, expected="x1, y1, x2, y2, or x, y, width, height, or x, y")


def texts_of(value: Any, name: str) -> list[str]:
    """The texts of a column: a text, a list of texts, or of mappings with one (`raw`, `sent`, ...); no empty one."""
    if isinstance(value, str) and value.strip()[:2] in ('["', "['", "[{"):
        value = structured(value, name)
    texts = []
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, Mapping):
            each = each.get(first_of(each, ("raw", "sent", "text", "caption", "expression")) or "")
        if each is None:
            continue
        if isinstance(each, bytes):
            each = each.decode("utf-8", "replace")
        if not isinstance(each, str):
            raise RowError(f"bad {name}", found=each, expected="a text or a list of texts")
        if each.strip() and each not in texts:
            texts.append(each)
    return texts


_SIZES = (("width", "height"), ("image_width", "image_height"), ("imageWidth", "imageHeight"))


def size_of(record: Columns) -> Size | None:
    """Width and height that a row says, as whole numbers."""
    name = first_of(record, ("image_size", "img_size", "original_size"))
    if name:
        value = structured(record[name], name)
        if isinstance(value, Mapping):
            value = [value.get("width"), value.get("height")]
    else:
        pairs = []
        for sides in _SIZES:
            pairs.append([record.get(side) for side in sides])
        value = next((each for each in pairs if None not in each), None)
        if value is None:
            return None
    try:
        width, height = (int(float(each)) for each in (value if isinstance(value, list) else ()))
    except (TypeError, ValueError, OverflowError):
        width = height = 0
    refuse_if(
        min(width, height) < 1, "bad width or height", RowError, found=value, expected="two whole numbers from 1"
    )
    return width, height


def read_own_phrase(phrase: Any, name: str, readings: Readings) -> RawPhrase:
    """A phrase of the product's own form; its boxes have these readings."""
    if isinstance(phrase, Mapping):
        named = {_OTHER_KEYS.get(k, k): value for k, value in phrase.items()}
    else:
        named = phrase
    values = known_values(named, name)
    if not values.keys() & {"boxes", "regions"} and not ("text" in values and "boxes" in named):
        raise RowError(f"{name}: neither boxes nor regions", found=dict(phrase), expected='"boxes": [] if it has none')
    boxes = read_boxes(values.pop("boxes", None), f"{name}, boxes", readings)
    for key in ("start", "end", "sentence", "image"):
        if key in values:
            values[key] = _whole(values[key], f"{name}, {key}")
    if "weight" in values and not (isinstance(values["weight"], Real) and 0 <= float(values["weight"]) < math.inf):
        raise RowError(f"{name}: bad weight", found=values["weight"], expected="a finite number from 0")
    for key in ("text", "entity"):
        if key in values:
            values[key] = str(values[key])
    return RawPhrase(boxes=boxes, **{"image": 0, **values})


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, Real) or float(value) % 1 or value < 0:
        raise RowError(f"bad {name}", found=value, expected="a whole number from 0")
    return int(float(value))


def as_path(value: Any) -> str | None:
    """The name of a picture's file, of which its id is made; None for a picture inside of the row."""
    if isinstance(value, Mapping):
        value = value.get("path")
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, str) and len(value) < 1000 and not value.startswith("data:"):
        return value
    return None

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows with objects and the names of their classes; a phrase is the name of a class with all of its boxes."""

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from grounded_attention.dataset_scripts.rows.raw import around
from grounded_attention.utils.whole_words import whole_words

from .columns import TEXT_NAMES, XYWH_PIXELS, XYWH_SHARES, XYXY_PIXELS, Columns, Context, boxes_of, each_text, make_row
from .masks import MASK_NAMES
from .questions import WORD_NAMES
from .raw import (
    BOX_NAMES,
    NAME_NAMES,
    Boxes,
    RawPhrase,
    RowError,
    Rows,
    first_of,
    items,
    read_boxes,
    span_phrases,
    structured,
    texts_of,
)
from .readings import PIXELS, Reading

UNREAD = "(unread)"  # the key of an object that is left out: why
_LABELME = ("rectangle", "polygon", "rotation", "mask", "point")
_NAME_LISTS = (
    "category", "categories", "label", "labels", "classes", "class", "category_id", "category_names", "phrases",
)  # fmt: skip
LIST_NAMES = (
    "objects",
    "annotations",
    "annotation",
    "object",
    "instances",
    "detections",
    "ground_truth",
    "target_instances",
    "shapes",
)
Named = tuple[str, Boxes, Columns]  # its name, its boxes, the object

# Columns of things in a picture; a null or an empty list says that there are none.
OBJECT_LISTS = (*LIST_NAMES, "regions", "elements", "samples", "refs", "phrases")
OBJECT_NAMES = (*OBJECT_LISTS, *BOX_NAMES, "x1", "y1", "x2", "y2", "xmin", "ymin", "xmax", "ymax", "x", "y")


def has_no_objects(record: Columns) -> bool:
    """Whether all columns of things are empty, and no text means them."""
    values = [record[key] for key in OBJECT_NAMES if key in record]
    others = record.keys() & {"question", *TEXT_NAMES} - {"caption", "text"}
    with_text = first_of(record, ("caption", "text")) and record.keys().isdisjoint(OBJECT_LISTS)
    return bool(values) and all(each in (None, [], {}, "") for each in values) and not others and not with_text


def read_no_objects(record: Columns, context: Context) -> Rows:
    yield from _rows(record, [], context)


def matches(record: Columns) -> bool:
    name = _objects_column(record)
    if name is None:
        return _beside(record) is not None
    value = record[name]
    return isinstance(value, (list, Mapping, str)) and "question" not in record


def _objects_column(record: Columns) -> str | None:
    """A column of objects, or one of boxes that have a name each, if no other text and no list of names means them; a
    list without a box says that the picture has none.
    """
    name = first_of(record, LIST_NAMES)
    boxes = first_of(record, BOX_NAMES)
    others = record.keys() & {*TEXT_NAMES} - {"caption"}
    if name is not None or boxes is None or others or _beside(record) is not None:
        return name
    value = record[boxes]
    named = isinstance(value, list) and all(isinstance(each, Mapping) and first_of(each, NAME_NAMES) for each in value)
    if named and (value or "caption" not in record):
        return boxes
    return None


def _beside(record: Columns) -> tuple[str, str] | None:
    """Columns with a list of boxes and a list of names beside each other, such as `boxes` and `labels`."""
    boxes = first_of(record, BOX_NAMES) or ""
    names = next((key for key in _NAME_LISTS if isinstance(record.get(key), list)), None)
    value = record.get(boxes)
    if names is None or not isinstance(value, list) or not all(isinstance(each, (list, Mapping)) for each in value):
        return None
    if any(isinstance(record.get(key), list) for key in WORD_NAMES):  # a page; its labels are tags of words
        return None
    others = record.keys() & {*TEXT_NAMES} - {*_NAME_LISTS}
    if others and len(record[names]) != len(value):
        return None
    return (boxes, names)


def is_of_tool(record: Columns) -> bool:
    """Whether objects are those of LabelMe or CreateML, whose boxes can be nothing else."""
    if {"shapes", "imagePath"} <= record.keys():
        return True
    lists = [record[key] for key in ("annotations", "annotation") if isinstance(record.get(key), list)]
    return any(_has_centre(each) for value in lists for each in value)


def _has_centre(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("coordinates"), Mapping)


def read(record: Columns, context: Context) -> Rows:
    column = _objects_column(record) or ""
    pair = _beside(record)
    if not column and pair is not None:
        used = [*pair, *(key for key in ("area", *MASK_NAMES) if isinstance(record.get(key), list))]
        objects = items({key: record[key] for key in used}, "objects")
    else:
        value = structured(record[column], column)
        used = [column]
        if isinstance(value, Mapping) and isinstance(value.get("detections"), list):  # FiftyOne
            value = value["detections"]
        objects = items(value, column)
    named: list[Named] = []
    for number, each in enumerate(objects):
        try:
            reason = each.get(UNREAD) or _without_area(each)
            if reason:
                context.leave_out(f"annotations: {reason}")
            else:
                named.append((_name_of(each, column, context), _boxes(each, context), each))
        except RowError as error:
            raise RowError(f"{column or 'objects'}, object {number}: {error}") from None
    yield from _rows({key: value for key, value in record.items() if key not in used}, named, context)


def _without_area(each: Columns) -> str | None:
    """Why a shape of LabelMe is left out."""
    kind = each.get("shape_type") or "polygon"
    number = 2
    if "shape_type" in each:
        number = len(each.get("points") or ())
    is_read = kind in _LABELME and (number == 1) == (kind == "point")
    if is_read:
        return None
    return f"of the type {kind} with {number} points"


def _boxes(each: Columns, context: Context) -> Boxes:
    about = each.get("attributes")
    if isinstance(about, Mapping):
        each = {**each, **about}
    context.note_beside(each)
    if _has_centre(each):
        return read_boxes(each["coordinates"], "coordinates", (Reading("cxcywh", PIXELS),))
    if "points" in each and first_of(each, BOX_NAMES) is None:  # LabelMe
        points = [point.numbers for point in read_boxes(each["points"], "points")]
        if not points or any(len(point) != 2 for point in points):
            raise RowError("bad points", found=each["points"], expected="a list of x, y in pixels")
        return read_boxes(around(points)[: 2 * min(len(points), 2)], "points", XYXY_PIXELS)
    readings = context.readings
    if not readings and ("bbox_id" in each or context.kind.startswith("detection-datasets/")):
        readings = XYXY_PIXELS
    elif not readings and "bounding_box" in each and "label" in each:  # FiftyOne
        readings = (*XYWH_SHARES, *XYWH_PIXELS)
    return boxes_of(each, readings)


def _name_of(each: Columns, column: str, context: Context) -> str:
    key = first_of(each, ("sentences", *NAME_NAMES, "names", "category_id", "class_id", "label_id"))
    if key is None and each.get("tokens_positive"):  # MDETR: words of the caption
        return ""
    value = structured(each[key], key) if key else None
    if isinstance(value, list):
        texts = texts_of(value, key or "")
        value = None
        if len(texts) == 1 or (texts and key == "sentences"):
            value = texts[0]
    if value is None:
        raise RowError("no name, or several", found=dict(each), expected=f"one of {', '.join(NAME_NAMES[:8])}")
    names = context.classes.get(f"{column}.{key}" if column else str(key)) or context.classes.get("names") or {}
    number = None
    if str(value).removesuffix(".0").isdecimal():
        number = int(value)
    if number in names:
        return names[number]
    if isinstance(value, str) and value.strip():
        return value
    expected = f"0 to {len(names) - 1}" if names else "names of the classes: columns={'names': [...]}"
    raise RowError("an unknown class", found=value, expected=expected)


def _rows(record: Columns, objects: Sequence[Named], context: Context) -> Rows:
    caption = next((record[key] for key in ("caption", "text") if isinstance(record.get(key), str)), "")
    spanned = [(boxes, each["tokens_positive"]) for _, boxes, each in objects if each.get("tokens_positive")]
    if caption and spanned:  # MDETR
        context.leave_out("objects without tokens_positive beside others with them", len(objects) - len(spanned))
        runs = [span_phrases(spans, caption, boxes, "tokens_positive") for boxes, spans in spanned]
        yield make_row(record, {"text": caption}, [*chain(*runs)])
        return
    if objects and all(isinstance(each.get("caption"), str) or each.get("sentences") for _, _, each in objects):
        for name, boxes, each in objects:  # a sentence for each object
            texts = texts_of(each.get("sentences") or each["caption"], "sentences")
            yield from each_text(record, texts or [name], boxes)
        return
    names: dict[str, Boxes] = {}
    for name, boxes, _ in objects:
        names.setdefault(name.strip(), []).extend(boxes)
    spans = [span for name in names for span in whole_words(re.escape(name), caption, re.IGNORECASE)]
    edges = [edge for span in sorted(spans) for edge in span]
    text = caption
    if len(spans) != len(names) or edges != sorted(edges):  # a name is not there once, or a part of another one
        text = " ".join(filter(None, [caption, *(f"{name}." for name in names)]))
        end = len(caption) + bool(caption)
        spans = []
        for name in names:
            spans.append((end, end + len(name)))
            end += len(name) + len(". ")
    phrases = []
    for boxes, (start, end) in zip(names.values(), spans, strict=True):
        phrases.append(RawPhrase(text[start:end], boxes, start, end, 0))
    yield make_row(record, {"text": text}, phrases)

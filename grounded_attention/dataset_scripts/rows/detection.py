# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows with objects and the names of their classes; a phrase is the name of a class with all of its boxes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from grounded_attention.utils.whole_words import whole_words

from .columns import TEXT_NAMES, XYWH_PIXELS, XYWH_SHARES, XYXY_PIXELS, Columns, Context, boxes_of, each_text, make_row
from .masks import MASK_NAMES
from .questions import WORD_NAMES
from .raw import (
    BOX_NAMES,
    NAME_NAMES,
    RawBox,
    RawPhrase,
    RawRow,
    RowError,
    first_of,
    items,
    span_phrases,
    structured,
    texts_of,
)

LIST_NAMES = ("objects", "annotations", "object", "instances", "detections", "ground_truth", "target_instances")

# Columns of things in a picture; a null or an empty list says that there are none.
OBJECT_LISTS = (*LIST_NAMES, "regions", "elements", "samples", "refs", "shapes", "phrases")
OBJECT_NAMES = (*OBJECT_LISTS, *BOX_NAMES, "x1", "y1", "x2", "y2", "xmin", "ymin", "xmax", "ymax", "x", "y")


def has_no_objects(record: Columns) -> bool:
    """Whether all columns of things are empty, and no text means them."""
    values = [record[key] for key in OBJECT_NAMES if key in record]
    others = any(key in record for key in ("question", *TEXT_NAMES) if key not in ("caption", "text"))
    with_text = first_of(record, ("caption", "text")) and not any(key in record for key in OBJECT_LISTS)
    return bool(values) and all(each in (None, [], {}, "") for each in values) and not others and not with_text


def read_no_objects(record: Columns, context: Context) -> Iterator[RawRow]:
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
    others = any(key in record for key in TEXT_NAMES if key != "caption")
    if name is not None or boxes is None or others or _beside(record) is not None:
        return name
    value = record[boxes]
    named = isinstance(value, list) and all(isinstance(each, Mapping) and first_of(each, NAME_NAMES) for each in value)
    return boxes if named and (value or "caption" not in record) else None


def _beside(record: Columns) -> tuple[str, str] | None:
    """Columns with a list of boxes and a list of names beside each other, such as `boxes` and `labels`."""
    boxes = first_of(record, BOX_NAMES)
    value = record.get(boxes) if boxes else None
    if not isinstance(value, list) or not all(isinstance(each, (list, Mapping)) for each in value):
        return None
    if any(isinstance(record.get(key), list) for key in WORD_NAMES):  # a page; its labels are tags of words
        return None
    known = (
        "category",
        "categories",
        "label",
        "labels",
        "classes",
        "class",
        "category_id",
        "category_names",
        "phrases",
    )
    names = next((key for key in known if isinstance(record.get(key), list)), None)
    others = any(key in record for key in TEXT_NAMES if key not in known)
    if names is None or boxes is None or (others and len(record[names]) != len(value)):
        return None
    return boxes, names


def read(record: Columns, context: Context) -> Iterator[RawRow]:
    name = _objects_column(record)
    if name is None:
        pair = _beside(record)
        assert pair is not None
        columns = [pair[0], pair[1], *(key for key in ("area", *MASK_NAMES) if isinstance(record.get(key), list))]
        lengths = {key: len(record[key]) for key in columns}
        if len({*lengths.values()}) > 1:
            raise RowError("lists of several lengths", found=lengths, expected="one entry for each object")
        objects = [
            dict(zip(columns, each, strict=True)) for each in zip(*(record[key] for key in columns), strict=True)
        ]
        name, rest = "", {key: value for key, value in record.items() if key not in columns}
    else:
        value = structured(record[name], name)
        if isinstance(value, Mapping) and isinstance(value.get("detections"), list):  # FiftyOne
            value = value["detections"]
        objects = items(value, name)
        rest = {key: value for key, value in record.items() if key != name}
    named_objects: list[tuple[str, list[RawBox], Mapping[str, Any]]] = []
    for number, each in enumerate(objects):
        readings = context.readings
        if not readings and "bbox_id" in each:  # detection-datasets/fashionpedia
            readings = XYXY_PIXELS
        if not readings and "bounding_box" in each and "label" in each:  # FiftyOne
            readings = (*XYWH_SHARES, *XYWH_PIXELS)
        if not readings and context.kind.startswith("detection-datasets/"):
            readings = XYXY_PIXELS
        with_values = {**each, **(each["attributes"] if isinstance(each.get("attributes"), Mapping) else {})}
        context.note_beside(with_values)
        boxes = boxes_of(with_values, readings)
        named_objects.append((_name_of(each, name, number, context), boxes, each))
    yield from _rows(rest, named_objects, context)


def _name_of(each: Mapping[str, Any], column: str, number: int, context: Context) -> str:
    key = first_of(each, ("sentences", *NAME_NAMES, "names", "category_id", "class_id", "label_id"))
    if key is None and each.get("tokens_positive"):  # MDETR: words of the caption
        return ""
    if key is None:
        raise RowError(f"{column}, object {number}: no name", found=dict(each), expected=", ".join(NAME_NAMES[:8]))
    value = structured(each[key], key)
    if value is None or isinstance(value, list):
        texts = texts_of(value, key)
        if not texts or (len(texts) > 1 and key != "sentences"):
            raise RowError(f"{column}, object {number}: no name, or several", found=value, expected="a text")
        return texts[0]
    names = context.classes.get(f"{column}.{key}" if column else key) or context.classes.get("names") or {}
    if isinstance(value, float) and value == int(value):
        value = int(value)
    if value in names:
        return names[value]
    if isinstance(value, str) and value.strip() and not (value.isdecimal() and int(value) in names):
        return value
    if isinstance(value, str) and value.isdecimal():
        return names[int(value)]
    expected = f"0 to {len(names) - 1}" if names else "names of the classes: columns={'names': [...]}"
    raise RowError(f"{column}, object {number}: an unknown class", found=value, expected=expected)


def _rows(
    record: Columns, objects: Sequence[tuple[str, list[RawBox], Mapping[str, Any]]], context: Context
) -> Iterator[RawRow]:
    skipped = record.get("skipped")
    for reason, count in skipped.items() if isinstance(skipped, Mapping) else ():  # by the reader of a tool's files
        context.leave_out(f"annotations: {reason}", count)
    caption = next((record[key] for key in ("caption", "text") if isinstance(record.get(key), str)), None)
    if caption and any(each.get("tokens_positive") for _, _, each in objects):  # MDETR
        spanned = [(boxes, each["tokens_positive"]) for _, boxes, each in objects if each.get("tokens_positive")]
        context.leave_out("objects without tokens_positive beside others with them", len(objects) - len(spanned))
        runs = [span_phrases(spans, caption, boxes, "tokens_positive") for boxes, spans in spanned]
        yield make_row(record, {"text": caption}, [*chain(*runs)])
        return
    written = [each for _, _, each in objects if isinstance(each.get("caption"), str) or each.get("sentences")]
    if written and len(written) == len(objects):  # a sentence for each object
        for name, boxes, each in objects:
            texts = texts_of(each.get("sentences") or each["caption"], "sentences")
            yield from each_text(record, texts or [name], boxes)
        return
    names: dict[str, list[RawBox]] = {}
    for name, boxes, _ in objects:
        names.setdefault(name.strip(), []).extend(boxes)
    text, spans = caption or "", []
    for name in names:
        spans += [*whole_words(re.escape(name), text, re.IGNORECASE)]
    edges = [edge for span in sorted(spans) for edge in span]
    if len(spans) != len(names) or edges != sorted(edges):  # a name is not there once, or a part of another one
        spans, text = [], f"{text} " if text else ""
        for name in names:
            spans.append((len(text), len(text) + len(name)))
            text += f"{name}. "
        text = text.rstrip(" ")
    phrases = [
        RawPhrase(text[start:end], boxes, start, end, 0)
        for boxes, (start, end) in zip(names.values(), spans, strict=True)
    ]
    yield make_row(record, {"text": text}, phrases)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows with a question and the boxes of its evidence, and rows with points."""

from collections.abc import Iterator, Mapping
from typing import Any

from .columns import XYWH_PIXELS, XYXY_PIXELS, Columns, Context, boxes_of, each_text, has_boxes, make_row
from .raw import RawBox, RawPhrase, RawRow, RowError, read_boxes, structured, texts_of
from .readings import Reading


def matches(record: Columns) -> bool:
    """Not RefCOCO of lmms-lab, whose question is a prompt and whose answers are the expressions."""
    if not isinstance(record.get("question"), str) or isinstance(record.get("answer"), list):
        return False
    if {"segmentation", "iscrowd", "answer"} <= record.keys():
        return False
    return has_boxes(record) or "target_instances" in record


def read(record: Columns, context: Context) -> Iterator[RawRow]:
    """Visual-CoT, Saliency-R1, TreeBench, V*: the question means its evidence; V* names each target."""
    question, answer = record["question"], record.get("answer", record.get("label"))
    targets = structured(record.get("target_object"), "target_object")
    if isinstance(targets, list) and all(isinstance(each, str) for each in targets):
        yield _targets(record, question, targets)
        return
    name = "target_instances" if "target_instances" in record else ""
    boxes = _instances(record[name], name) if name else boxes_of(record)
    start = len(question) - len(question.lstrip())
    phrase = RawPhrase(question.strip(), boxes, start, start + len(question.strip()), 0)
    row = make_row(record, {"text": question}, [phrase])
    if answer is not None:
        row.more["answer"] = answer if isinstance(answer, str) else str(answer)
    yield row


def _targets(record: Columns, question: str, targets: list[str]) -> RawRow:
    """V*: boxes x, y, width, height, one for each target; words of the question where they are there."""
    boxes = boxes_of(record, XYWH_PIXELS if "options" in record else ())
    if len(boxes) != len(targets):
        raise RowError("bbox and target_object", found=(len(boxes), len(targets)), expected="a box for each target")
    text, phrases = question, []
    for target, box in zip(targets, boxes, strict=True):
        start = text.lower().find(target.lower())
        if start < 0:
            text = f"{text.rstrip()} {target}"
            start = len(text) - len(target)
        phrases.append(RawPhrase(text[start : start + len(target)], [box], start, start + len(target), 0))
    return make_row(record, {"text": text}, phrases)


def _instances(value: Any, name: str) -> list[RawBox]:
    """TreeBench: a text that holds a list of boxes, or of objects with one."""
    value = structured(value, name)
    if isinstance(value, Mapping):
        value = [value]
    boxes = []
    for each in value or []:
        if isinstance(each, Mapping) and not {"x1", "xmin", "x"} & each.keys():
            key = next((key for key in ("bbox", "box", "bbox_2d", "boxes") if each.get(key) is not None), None)
            if key is None:
                raise RowError(f"bad {name}", found=each, expected="bbox")
            each = each[key]
        boxes.append(each)
    numbers = [isinstance(each, (int, float)) for each in boxes]
    return read_boxes(boxes if not any(numbers) else [boxes], name, XYXY_PIXELS)


# Points


def has_points(record: Columns) -> bool:
    return "points" in record and not {"messages", "conversations"} & record.keys()


def read_points(record: Columns, context: Context) -> Iterator[RawRow]:
    """PixMo-Points: points in percent of the picture; a count of 0 says that nothing is there."""
    name = next((key for key in ("label", "text", "phrase", "caption", "name") if record.get(key) is not None), None)
    if name is None:
        raise RowError("no text beside the points", found=list(record), expected="label or text")
    known: tuple[Reading, ...] = ()
    if "label" in record and {"count", "collection_method", "image_sha256"} & record.keys():
        known = (Reading("points", 100.0),)
    value = structured(record["points"], "points")
    boxes = [
        box
        for each in (value if isinstance(value, list) else [value] if value else [])
        for box in (_nested(each, known) if isinstance(each, list) else read_boxes(each, "points", known))
    ]
    if wrong := [each.numbers for each in boxes if len(each.numbers) != 2]:
        raise RowError("bad points", found=wrong[0], expected="x and y")
    yield from each_text(record, texts_of(record[name], name), boxes)


def _nested(value: Any, known: tuple[Reading, ...]) -> list[RawBox]:
    if value and isinstance(value[0], (list, Mapping)):
        return [box for each in value for box in read_boxes(each, "points", known)]
    return read_boxes([value], "points", known)

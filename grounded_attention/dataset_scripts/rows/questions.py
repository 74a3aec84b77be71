# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows with a question and the boxes of its evidence, and rows with points."""

import re
from collections.abc import Mapping
from typing import Any

from grounded_attention.dataset_scripts.files.errors import refuse_if
from grounded_attention.utils.named_types import Span
from grounded_attention.utils.whole_words import whole_words

from .columns import XYWH_PIXELS, XYXY_PIXELS, Columns, Context, boxes_of, each_text, has_boxes, make_row
from .raw import (
    BOX_NAMES,
    Boxes,
    RawPhrase,
    RawRow,
    RowError,
    Rows,
    first_of,
    found_in,
    read_boxes,
    structured,
    texts_of,
)
from .readings import Reading, Readings

WORD_NAMES = ("words", "tokens", "ocr_tokens")  # the words of a page, in columns beside their boxes


def matches(record: Columns) -> bool:
    """Not RefCOCO of lmms-lab, whose question is a prompt and whose answers are the expressions."""
    if not isinstance(record.get("question"), str) or isinstance(record.get("answer"), list):
        return False
    if {"segmentation", "iscrowd", "answer"} <= record.keys():
        return False
    return has_boxes(record) or "target_instances" in record


def read(record: Columns, context: Context) -> Rows:
    """Visual-CoT, Saliency-R1, TreeBench, V*: the question means its evidence; V* names each target."""
    question = record["question"]
    answer = record.get("answer", record.get("label"))
    targets = structured(record.get("target_object"), "target_object")
    if isinstance(targets, list) and all(isinstance(each, str) for each in targets):
        yield _targets(record, question, targets, context)
        return
    boxes = _instances(record) if "target_instances" in record else evidence_of(record, ())
    for row in each_text(record, [question], boxes):
        row.more |= {} if answer is None else {"answer": str(answer)}
        yield row


def evidence_of(record: Columns, readings: Readings) -> Boxes:
    """The boxes of a row. DocVQA and its siblings have one for each word of a page: those of the answer, which must
    stand there once."""
    boxes = boxes_of(record, readings)
    name = first_of(record, WORD_NAMES)
    if name is None:
        return boxes
    words = structured(record[name], name)
    if not isinstance(words, list) or len(words) != len(boxes):
        raise RowError("words and their boxes", found=len(boxes), expected="a box for each word")
    given = structured(record.get("answers"), "answers") or [record.get("answer", record.get("label"))]
    page = "\0".join(["", *map(_bare_word, words), ""])
    found: set[Span] = set()
    for answer in texts_of(given, "answers"):
        of_answer = answer.split()
        run = "\0".join(["", *map(_bare_word, of_answer), ""])
        for place in {page.find(run), page.rfind(run)} - {-1}:
            start = page.count("\0", 0, place)
            found.add((start, start + len(of_answer)))
    refuse_if(
        len(found) != 1,
        "words of an answer that do not stand once among the words of the page",
        RowError,
        found=given,
        expected="once; else a row with the boxes of the answer alone",
    )
    start, end = found.pop()
    return boxes[start:end]


def _bare_word(word: Any) -> str:
    """A word without the punctuation around it."""
    return str(word).strip(".,:;!?()[]\"'").lower() or str(word)


def _targets(record: Columns, question: str, targets: list[str], context: Context) -> RawRow:
    """V*: boxes x, y, width, height, one for each target, which the question names."""
    boxes = boxes_of(record, XYWH_PIXELS if "options" in record else ())
    refuse_if(
        len(boxes) != len(targets),
        "bbox and target_object",
        RowError,
        found=(len(boxes), len(targets)),
        expected="a box for each target",
    )
    phrases = []
    for target, box in zip(targets, boxes, strict=True):
        places = [*whole_words(re.escape(target), question, re.IGNORECASE)]
        if len(places) != 1:
            context.leave_out("targets that the question does not name, or more than once")
            continue
        start, end = places[0]
        phrases.append(RawPhrase(question[start:end], [box], start, end, 0))
    return make_row(record, {"text": question}, phrases)


def _instances(record: Columns) -> Boxes:
    """TreeBench: a text that holds a list of boxes, or of objects with one."""
    value = structured(record["target_instances"], "target_instances")
    listed = value if isinstance(value, list) else [value]
    boxes = []
    for target in listed:
        box = target.get(first_of(target, BOX_NAMES) or "") if isinstance(target, Mapping) else target
        if box is not None:
            boxes.append(box)
    return read_boxes(boxes, "target_instances", XYXY_PIXELS)


# Points


def has_points(record: Columns) -> bool:
    return "points" in record and not {"messages", "conversations"} & record.keys()


def read_points(record: Columns, context: Context) -> Rows:
    """PixMo-Points: points in percent of the picture; a count of 0 says that nothing is there."""
    names = ("label", "text", "phrase", "caption", "name")
    name = found_in(record, names, "no text beside the points", "label or text")
    known: Readings = ()
    if "label" in record and {"count", "collection_method", "image_sha256"} & record.keys():
        known = (Reading("points", 100.0),)
    boxes = read_boxes(record["points"], "points", known)
    wrong = [box.numbers for box in boxes if len(box.numbers) != 2]
    if wrong:
        raise RowError("bad points", found=wrong[0], expected="x and y")
    yield from each_text(record, texts_of(record[name], name), boxes)

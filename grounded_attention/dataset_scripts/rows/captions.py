# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows with captions and phrases in them: own rows, Entities, GRIT, ODVG."""

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from grounded_attention.processing.phrase import row_texts
from grounded_attention.utils.named_types import Columns, Fields, Span

from .chats import read_messages
from .columns import XYXY_PIXELS, XYXY_SHARES, Context, has_boxes, images_of, make_row
from .raw import (
    BOX_NAMES,
    RawPhrase,
    RowError,
    Rows,
    a_text,
    first_of,
    found_in,
    items,
    read_boxes,
    read_own_phrase,
    span_phrases,
    structured,
)

# A chain that differs from the number in the other file, if only by a zero in front, would lose its boxes.
CHAIN = re.compile(r"0|[1-9][0-9]{0,17}")
TAG = re.compile(rf"\[/EN#(?P<chain>{CHAIN.pattern})(?P<types>(/[\w-]*)*) (?P<words>[^\[\]]+)\]")
PART = re.compile(r"/EN#|(^|\s)\[|\](\s|$)")
FORM = "[/EN#<chain>/<type> words]"
TYPES = ("bodyparts", "notvisual")  # the official types of two words
TEXTS = ("messages", "conversations", "captions", "caption", "text", "sentence", "sentences")


# The form of this package


def has_phrases(record: Columns) -> bool:
    """Whether a row with texts has phrases, or entities with a text and boxes each."""
    value = record.get("phrases", record.get("entities"))
    if not isinstance(value, list) or (first_of(record, TEXTS) is None and "prompt" not in record):
        return False
    are_objects = all(isinstance(each, Mapping) for each in value)
    if "phrases" in record:
        return are_objects or not has_boxes(record)
    return are_objects and all(each.keys() & {"text", "phrase"} and first_of(each, BOX_NAMES) for each in value)


def read_phrases(record: Columns, context: Context) -> Rows:
    """Own rows: texts, and `phrases` with the keys of `Phrase`; or entities with a text and boxes each, which are not
    of the own form: what their boxes mean is counted."""
    column = "phrases" if "phrases" in record else "entities"
    readings = XYXY_SHARES if column == "phrases" else ()
    phrases = [read_own_phrase(each, f"{column}, element {n}", readings) for n, each in enumerate(record[column])]
    texts, pictures = _texts(record)
    rest = {key: value for key, value in record.items() if key not in (column, "messages", "conversations")}
    yield make_row(rest, texts, phrases, images=images_of(record) or pictures)


def _texts(record: Columns) -> tuple[Columns, list[Any]]:
    """The texts of a row, and the pictures inside of its messages."""
    name = first_of(record, TEXTS)
    if name in ("messages", "conversations"):
        messages, pictures, _ = read_messages(structured(record[name], name), name)
        return {"messages": messages}, pictures
    if name is None:
        return {"prompt": record["prompt"], "completion": record.get("completion", "")}, []
    value = record[name]
    is_list = isinstance(value, list)
    if not all(isinstance(each, str) for each in (value if is_list else [value])):
        raise RowError(f"bad {name}", found=value, expected="a text, or texts")
    return {"captions" if is_list else "text": value}, []


# Entities


def has_entities(record: Columns) -> bool:
    return any(isinstance(each, str) and "[/EN#" in each for each in _captions(record))


def _captions(record: Columns) -> list[Any]:
    value = record.get("captions", record.get("caption", record.get("sentences", record.get("text"))))
    if isinstance(value, list):
        return value
    return [value]


def read_entities(record: Columns, context: Context) -> Rows:
    """Captions with the marks of Flickr30K Entities; entities have boxes."""
    name = first_of(record, ("entities", "boxes", "bboxes"))
    if name:
        # The boxes of each id: a mapping, or entries with an id and boxes.
        value = structured(record[name], name)
        if not isinstance(value, Mapping):
            by_id = {}
            for each in items(value, name):
                key = found_in(each, ("entity_id", "id", "phrase_id"), f"{name}: no id", "an id and boxes")
                by_id[each[key]] = each.get(first_of(each, BOX_NAMES) or "")
            value = by_id
        boxes = {str(key): read_boxes(each, name) for key, each in value.items()}
    else:
        boxes = {}
    for caption in _captions(record):
        text, marked = parse_sentence(caption)
        phrases = [RawPhrase(**each, boxes=boxes.get(each["entity"], []), sentence=0) for each in marked]
        yield make_row(record, {"text": text}, phrases)


def parse_sentence(line: str, **place: Any) -> tuple[str, list[Fields]]:
    """Splits a tagged caption, `[/EN#<chain>/<type>... words]`, into plain text and phrases; `place` is that of an
    error."""
    line = " ".join(line.split())
    text = ""
    phrases: list[Fields] = []
    done = 0
    for tag in TAG.finditer(line):
        text = text + line[done : tag.start()]
        start = len(text)
        words = tag["words"].strip()
        types = [kind for kind in tag["types"].split("/") if kind]
        sides = line[: tag.start()][-1:] + line[tag.end() :][:1]
        joined = any(side.isalnum() or side in "[]" for side in sides)
        split = types and types[-1] + words.split()[0].split("/")[0] in TYPES  # a space in a type
        if joined or split:
            raise RowError("a phrase that is not apart from its neighbours", found=tag[0], expected=FORM, **place)
        text = text + words
        phrases.append({"text": words, "start": start, "end": len(text), "entity": tag["chain"], "types": types})
        done = tag.end()
    text = text + line[done:]
    between = TAG.sub(" ", line)
    if PART.search(between):  # brackets inside a word are its letters
        raise RowError("a tag that cannot be read", found=between, expected=FORM, **place)
    return text, phrases


# GRIT


def has_chunks(record: Columns) -> bool:
    return "caption" in record and bool({"noun_chunks", "ref_exps"} & record.keys())


def read_chunks(record: Columns, context: Context) -> Rows:
    """GRIT: lists of [start, end, x1, y1, x2, y2, score], characters of the caption."""
    caption = a_text(record["caption"], "caption")
    spans: dict[Span, RawPhrase] = {}
    for name in ("noun_chunks", "ref_exps"):
        for number, entry in enumerate(structured(record.get(name), name) or []):
            place = f"{name}, element {number}"
            if not isinstance(entry, list) or len(entry) < 6:
                raise RowError(place, found=entry, expected="[start, end, x1, y1, x2, y2, score]")
            boxes = read_boxes(entry[2:6], place, XYXY_SHARES)
            for phrase in span_phrases(entry[:2], caption, boxes, place):
                first = spans.setdefault((phrase.start or 0, phrase.end or 0), phrase)
                if boxes[0].numbers not in [each.numbers for each in first.boxes]:
                    first.boxes = [*first.boxes, *boxes]
    yield make_row(record, {"text": caption}, [*spans.values()])


# ODVG, the form of Grounding DINO's training


def has_grounding(record: Columns) -> bool:
    return isinstance(record.get("grounding"), (Mapping, str))


def read_grounding(record: Columns, context: Context) -> Rows:
    """`{"grounding": {"caption": ..., "regions": [{"phrase": ..., "bbox": [x1, y1, x2, y2]}]}}`, pixels."""
    value = structured(record["grounding"], "grounding")
    caption = a_text(value.get("caption"), "caption")
    phrases = []
    for number, each in enumerate(items(value.get("regions"), "regions")):
        place = f"regions, element {number}"
        boxes = read_boxes(each.get("bbox"), "bbox", XYXY_PIXELS)
        words = each.get("phrase")
        if each.get("tokens_positive"):
            phrases += span_phrases(each["tokens_positive"], caption, boxes, place)
            continue
        for text in words if isinstance(words, list) else [words]:
            if not isinstance(text, str) or not text.strip():
                raise RowError(place, found=text, expected=f"words of {caption!r:.80}")
            phrases.append(RawPhrase(text, boxes, sentence=0))
    yield make_row(record, {"text": caption}, phrases)


def texts_in_order(texts: Columns) -> Sequence[str]:
    """The texts of a row, in the order that `sentence` counts."""
    if "prompt" in texts:
        parts = (texts["prompt"], texts["completion"])
        texts = {"messages": [*chain(*([{"content": each}] if isinstance(each, str) else each for each in parts))]}
    return row_texts(texts)

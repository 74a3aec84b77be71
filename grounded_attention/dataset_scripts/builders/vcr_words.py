# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Conversion of VCR's mixed tokens, words and lists of object indices, to plain text with tagged spans."""

import zlib
from collections.abc import Sequence
from typing import Any

from grounded_attention.dataset_scripts.files.records import Record

PERSON = "person"
# The names of the VL-BERT public code, in its order; none of them reveals a gender.
NEUTRAL_NAMES = (
    "Casey",
    "Riley",
    "Jessie",
    "Jackie",
    "Avery",
    "Jaime",
    "Peyton",
    "Kerry",
    "Jody",
    "Kendall",
    "Frankie",
    "Pat",
    "Quinn",
)
_EXPECTED = "words and lists of object indices"


def object_words(objects: Sequence[str], example_id: str, neutral: bool) -> list[str]:
    """Returns the word for each object: its category, or a gender-neutral name for a person if `neutral` is set.

    Persons get the names in turn, in the order of the objects. The VL-BERT public code continues with the next name at
    the next item. Here an item starts at a name drawn by its id (CRC-32), so that a row depends only on itself and
    names reveal little about the position of an object. A fourteenth person gets the name of the first.
    """
    start = zlib.crc32(example_id.encode())
    words, persons = [], 0
    for category in objects:
        if neutral and category == PERSON:
            words.append(NEUTRAL_NAMES[(start + persons) % len(NEUTRAL_NAMES)])
            persons += 1
        else:
            words.append(category)
    return words


def render(record: Record, what: str, tokens: Any, words: Sequence[str]) -> dict[str, Any]:
    """Converts mixed tokens to text with tags, tokens joined by spaces.

    A list of several objects is written as "a and b". Each name has its own tag, so that its word pieces can see its
    region; "and" has none (VL-BERT public code).
    """
    if not isinstance(tokens, list):
        raise record.error(f"bad {what}", found=tokens, expected=_EXPECTED)
    text, tags = "", []
    for word, index in _words_with_objects(record, what, tokens, words):
        start = len(text) + bool(text)
        text = f"{text} {word}" if text else word
        if index is not None:
            tags.append({"start": start, "end": len(text), "objects": [index]})
    record.refuse_if(not text, f"no words in {what}", found=tokens, expected=_EXPECTED)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise record.error(f"bad {what}", found=text, expected="words without unpaired surrogates")
    return {"text": text, "tags": tags}


def _words_with_objects(
    record: Record, what: str, tokens: list[Any], words: Sequence[str]
) -> list[tuple[str, int | None]]:
    """Returns the words in order, each with the index of its object, or None."""
    words_with_objects: list[tuple[str, int | None]] = []
    for token in tokens:
        if isinstance(token, str):
            words_with_objects += [(" ".join(token.split()), None)] if token.strip() else []
            continue
        if not isinstance(token, list) or not token:
            raise record.error(f"bad {what}", found=token, expected=_EXPECTED)
        for place, index in enumerate(token):
            if type(index) is not int or not 0 <= index < len(words):
                expected = f"an index into its {len(words)} objects, from 0"
                raise record.error(f"{what} refers to an object that does not exist", found=index, expected=expected)
            words_with_objects += [("and", None)] if place else []
            words_with_objects.append((words[index], index))
    return words_with_objects

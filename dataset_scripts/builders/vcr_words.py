# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VCR's mixed tokens, words and lists of object indices, as plain text with tagged spans."""

import zlib
from collections.abc import Sequence
from typing import Any

from grounded_attention.dataset_scripts.files.records import Record

PERSON = "person"
# The names of the VL-BERT public code, in its order; none of them says man or woman.
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
    """The word for each object: its category, and for a person a gender-neutral name if `neutral`.

    Persons take the names in turn, in the order of the objects. The VL-BERT public code goes on with the next name at
    the next item; here an item starts at a name drawn by its id (CRC-32), so that a row depends on nothing but itself
    and names say as little about the place of an object. A fourteenth person has the name of the first.
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
    """Mixed tokens as `{"text": str, "tags": [{"start", "end", "objects"}]}`, tokens joined by spaces.

    A list of several objects reads "a and b"; each name is a tag of its own, so that its word pieces can see its own
    region, and "and" has none (VL-BERT public code).

    Args:
        record: Where the tokens stand, for errors.
        what: What errors call them, such as `"question"`.
        tokens: As decoded from the file.
        words: The word for each object of the image.

    Raises:
        DataError: Something else than words and lists of object indices, an index of no object, or no word at all.
    """
    if not isinstance(tokens, list):
        raise record.error(f"bad {what}", found=tokens, expected=_EXPECTED)
    text, tags = "", []
    for word, index in _said(record, what, tokens, words):
        start = len(text) + bool(text)
        text = f"{text} {word}" if text else word
        if index is not None:
            tags.append({"start": start, "end": len(text), "objects": [index]})
    if not text:
        raise record.error(f"no words in {what}", found=tokens, expected=_EXPECTED)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise record.error(f"bad {what}", found=text, expected="words without halves of characters")
    return {"text": text, "tags": tags}


def _said(record: Record, what: str, tokens: list[Any], words: Sequence[str]) -> list[tuple[str, int | None]]:
    """The words in their order, each with the index of its object if it stands for one."""
    said: list[tuple[str, int | None]] = []
    for token in tokens:
        if isinstance(token, str):
            said += [(" ".join(token.split()), None)] if token.strip() else []
            continue
        if not isinstance(token, list) or not token:
            raise record.error(f"bad {what}", found=token, expected=_EXPECTED)
        for place, index in enumerate(token):
            if type(index) is not int or not 0 <= index < len(words):
                expected = f"an index into its {len(words)} objects, from 0"
                raise record.error(f"{what} names an object that is not there", found=index, expected=expected)
            said += [("and", None)] if place else []
            said.append((words[index], index))
    return said

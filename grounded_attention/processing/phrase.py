# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The phrase: words of one text of a row, and the part of an image that they mean."""

import difflib
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

# What joins words: a hyphen, and an apostrophe that is not that of a possessive.
_HYPHENS = "-\u2010\u2011"
_JOINED = re.compile(rf"[{_HYPHENS}]\w|['\u2019](?![sS]\b)\w")
# Thai to Tibetan and Burmese, Hangul, Khmer, kana and Chinese characters.
_UNSPACED = re.compile(
    "[\u0e00-\u109f\u1100-\u11ff\u1780-\u17ff\u3005\u3040-\u318f\u31f0-\u31ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff]"
)


@dataclass(frozen=True)
class Phrase:
    """Words of one text of a row, and the part of an image that they mean.

    Two phrases are equal if they are the same words at the same place; boxes and regions are not compared.

    Args:
        text (`str`): The words; "" in a phrase for [`read_phrase`] if they need not be compared.
        start (`int`): Their first character in the text.
        end (`int`): The character after the last one.
        sentence (`int`, *optional*, defaults to 0): The text: an index into the texts of the row.
        boxes (`(n, 4)`, *optional*): Gold boxes x1, y1, x2, y2, divided by width and height of the image, in [0, 1].
            None or no box: the phrase is not grounded.
        regions (sequence of `int`, *optional*): Indices into the regions of the image; with them boxes are not read.
        scores (sequence of `float`, *optional*): How sure each box is, in (0, 1].
        image (`int`, *optional*): The image of the boxes: an index into the images of the row, 0 by default.
        entity (`str`, *optional*): The id of what the words mean; phrases with one id mean the same.
        types (sequence of `str`, *optional*): Groups of the phrase in tables, such as the type of the entity.
    """

    text: str
    start: int
    end: int
    sentence: int = 0
    boxes: Any = field(default=None, compare=False)
    regions: Any = field(default=None, compare=False)
    scores: Any = field(default=None, compare=False)
    image: int | None = None
    entity: str | None = None
    types: Sequence[str] = ()


KEYS = tuple(each.name for each in fields(Phrase))
# Keys of earlier versions, and of rows that they wrote.
_FORMER = {"words": "text", "caption": "sentence", "message": "sentence", "entity_id": "entity"}


def read_phrase(given: Mapping[str, Any] | Phrase, texts: Sequence[str], name: str, grounded: bool = False) -> Phrase:
    """Reads a phrase of a row.

    A mapping has the keys of [`Phrase`]. `start` and `end` may be missing if the text occurs once, as whole words, in
    the sentence, or without `sentence` in all texts. As in earlier versions, an integer `text` is the `sentence`, and
    `region` one of `regions`.

    Args:
        given (`Mapping` or `Phrase`): The phrase.
        texts (sequence of `str`): The texts of the row.
        name (`str`): Its name in errors.
        grounded (`bool`, *optional*, defaults to `False`): Whether a mapping must say what the words mean: `boxes` or
            `regions`. `boxes: []` says that they mean nothing in the image.

    Returns:
        `Phrase`: The phrase.

    Raises:
        ValueError: A key is unknown (the message has the nearest known one) or missing, the words are not at that
            place, or occur not exactly once.
    """
    found = _known_values(given, name)
    if grounded and isinstance(given, Mapping) and "boxes" not in given and "regions" not in given:
        raise ValueError(f"{name}: neither boxes nor regions; give 'boxes': [] for a phrase that is not grounded.")
    text, sentence = found.get("text") or None, found.get("sentence")
    if sentence is not None and not (_is_integer(sentence) and 0 <= sentence < len(texts)):
        raise ValueError(f"{name}: sentence is {sentence!r}, but the example has {len(texts)} text(s).")
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{name}: text is {text!r:.80}, expected the words of the phrase.")
    start: Any = found.get("start")
    end: Any = found.get("end")
    if start is None and end is None and text is not None:
        sentence, start, end = _find(text, texts, sentence, name)
    sentence = int(sentence or 0)
    if not (_is_integer(start) and _is_integer(end)):
        raise ValueError(f"{name}: start and end are {start!r:.40} and {end!r:.40}, expected characters of its text.")
    whole = texts[sentence]
    if not 0 <= start <= end <= len(whole):
        raise ValueError(
            f"{name}: characters {start} to {end} are outside its text {whole!r:.200} of {len(whole)} characters."
        )
    words = whole[start:end]
    if text is not None and words != text:
        raise ValueError(f"{name}: text is {text!r:.80}, but characters {start} to {end} are {words!r:.80}.")
    return Phrase(**{**found, "text": words, "start": int(start), "end": int(end), "sentence": sentence})


def _known_values(given: Any, name: str) -> dict[str, Any]:
    """The values of a mapping that are not None, by the names of `Phrase`."""
    # By its attributes: the code of a checkpoint has a class `Phrase` of its own.
    values = given if isinstance(given, Mapping) else getattr(given, "__dict__", None)
    if values is None:
        raise ValueError(f"{name}: {given!r:.80} is not a dictionary; expected a list of phrases for every example.")
    found: dict[str, Any] = {}
    for key, value in values.items():
        if value is None:
            continue
        if key == "text" and _is_integer(value):
            key = "sentence"
        elif key == "region":
            key, value = "regions", [value]
        known = _FORMER.get(key, key)
        if known not in KEYS:
            close = difflib.get_close_matches(str(key), [*KEYS, *_FORMER], n=1, cutoff=0.5)
            meant = f"; did you mean {_FORMER.get(close[0], close[0])!r}?" if close else "."
            raise ValueError(f"{name}: {key!r} is no key of a phrase; known: {', '.join(KEYS)}{meant}")
        if known in found:
            raise ValueError(f"{name}: {key!r} says once more what {known!r} is; remove one of them.")
        found[known] = value
    return found


def _is_integer(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _find(text: str, texts: Sequence[str], sentence: int | None, name: str) -> tuple[int, int, int]:
    searched = range(len(texts)) if sentence is None else [sentence]
    places = [(index, *place) for index in searched for place in whole_words(re.escape(text), texts[index])]
    if len(places) != 1 or not text:
        often = f"{len(places)} times in the texts" if places else "not in the texts as whole words"
        raise ValueError(f"{name}: the phrase {text!r:.80} is {often}: give sentence, start and end.")
    return places[0]


def whole_words(pattern: str, text: str, flags: int = 0, begin: int = 0) -> Iterator[tuple[int, int]]:
    """Finds where a regular expression matches whole words of a text.

    A hyphen joins words ("T-shirt"), and so does an apostrophe, except that of a possessive ("man's") or after an
    article ("l'homme"). In scripts without spaces between words, and in Korean, every place may be a border.
    """
    for match in re.compile(f"(?=({pattern}))", flags).finditer(text, begin):
        start, end = match.span(1)
        if not (_inside_word(text, start) or _inside_word(text, end)):
            yield start, end


def _inside_word(text: str, place: int) -> bool:
    """Whether the characters before and after a place belong to one word."""
    if not 0 < place < len(text):
        return False
    before, after, unspaced = text[place - 1], text[place], _UNSPACED.search(text, place - 1, place + 1)
    if _is_mark(after) or unspaced:
        return _is_mark(after)
    left = _is_letter(before) or (before in _HYPHENS and place > 1 and _is_letter(text[place - 2]))
    right = _is_letter(after) or (before not in _HYPHENS and _JOINED.match(text, place) is not None)
    return left and right


def _is_mark(character: str) -> bool:
    return character in "\u200c\u200d" or unicodedata.category(character).startswith("M")


def _is_letter(character: str) -> bool:
    return character == "_" or character.isalnum() or _is_mark(character)


__all__ = ["KEYS", "Phrase", "read_phrase", "whole_words"]

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Finds words in a text, in any script."""

import re
import unicodedata
from collections.abc import Iterator

# What joins words: a hyphen, and an apostrophe that is not that of a possessive.
_HYPHENS = "-\u2010\u2011"
_JOINED = re.compile(rf"[{_HYPHENS}]\w|['\u2019](?![sS]\b)\w")
# Thai to Tibetan and Burmese, Hangul, Khmer, kana and Chinese characters.
_UNSPACED = re.compile(
    "[\u0e00-\u109f\u1100-\u11ff\u1780-\u17ff\u3005\u3040-\u318f\u31f0-\u31ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff]"
)


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

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Finds words in a text, in any script: by the word boundaries and clusters of Unicode (UAX #29)."""

import re
from collections.abc import Iterator

import regex

from .named_types import Span

# Characters of scripts without spaces between words: Chinese, Japanese, Thai, Lao, Khmer, Burmese and their like.
_UNSPACED = r"[\w&&[\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{scx=Bopo}\p{LB=SA}\p{LB=AK}\p{LB=AS}]]"
_LETTER = r"[\w\p{N}]"
_HYPHEN = r"[-\u2010\u2011]"
# A character with its marks. Flags come first: of a long row of them \X would count all for each.
_CLUSTER = r"(?:\p{RI}{1,2}[\p{M}\u200d]*|\X\p{M}*)"
# Up to a boundary of UAX #29, or a full stop or colon before a letter, as in "dog.It".
_RUN = r"(?:\X(?!\b|[.:]\p{L}))*\X"
_START = rf"(?!{_UNSPACED})(?=\w)"
_WORD = regex.compile(rf"(?V1w){_START}{_RUN}(?:(?:{_HYPHEN}|['\u2019]){_START}{_RUN})*|{_CLUSTER}")
_VISIBLE = regex.compile(r"[^\s\p{Cc}\p{Cf}]")
# A place within a word. An apostrophe joins words, except that of a possessive or after an article ("l'homme").
_INSIDE = regex.compile(
    rf"(?V1w)(?=[\p{{M}}\u200c\u200d])|(?<!{_UNSPACED}|\p{{Hangul}})(?!{_UNSPACED}|\p{{Hangul}})(?:"
    rf"(?<={_LETTER}|{_LETTER}{_HYPHEN}|\d[.,](?=\d))(?={_LETTER})"
    rf"|(?<={_LETTER})(?={_HYPHEN}\w|['\u2019](?![sS]\b)\w)|(?<=\d)(?=[.,]\d))"
)


def find_words(text: str) -> list[Span]:
    """(start, end) of every word and punctuation mark of a text; without spaces, of every character with its marks."""
    return [match.span() for match in _WORD.finditer(text) if _VISIBLE.search(match[0])]


def whole_words(pattern: str, text: str, flags: int = 0, begin: int = 0) -> Iterator[Span]:
    """Finds where a regular expression matches whole words of a text.

    A hyphen joins words ("T-shirt"), and so does an apostrophe, except that of a possessive ("man's") or after an
    article ("l'homme"). In scripts without spaces between words, and in Korean, every place between two characters
    with their marks may be a border.
    """
    borders = {0, *(match.end() for match in regex.finditer(_CLUSTER, text))}
    for match in re.compile(f"(?=({pattern}))", flags).finditer(text, begin):
        if all(place in borders and not _INSIDE.match(text, place) for place in match.span(1)):
            yield match.span(1)

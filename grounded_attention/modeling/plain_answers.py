# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Answers that mean the same get the same text."""

_ARTICLES = ("a", "an", "the")
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_OTHER_WORDS = {**{word: str(number) for number, word in enumerate(_NUMBERS, start=1)}, "grey": "gray"}


def plain_answer(answer: str) -> str:
    """An answer in lower case, without a full stop at the end and an article at the beginning; an answer that is a
    number from one to ten in digits (LXMERT public code).
    """
    words = answer.lower().strip().rstrip(".").split()
    plain = " ".join(words[1:] if len(words) > 1 and words[0] in _ARTICLES else words)
    return _OTHER_WORDS.get(plain, plain)

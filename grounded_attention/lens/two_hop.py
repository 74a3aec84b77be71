# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The reasoning of an answer, through which the two-hop map of Saliency-R1 goes: answer -> reasoning -> image.

A head looks from the row of an answer's token at the tokens of the reasoning, and in their rows at the image. What the
answer reads from the image itself is no part of it.

Shape letters: Q rows, T tokens of the reasoning, R image tokens, H heads.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from grounded_attention.processing.patch_sequences import decode_each

from .sequences import Sequenced

# The reasoning without white space at its ends, and before a word of the answer.
REASONING = re.compile(r"(?s)<think>\s*(\S.*?)\s*</think>(?=\W*\w)")


def join_hops(to_reasoning: Tensor, from_reasoning: Tensor) -> Tensor:
    """The flow of each head, (H, Q, R): attention of rows to the reasoning (H, Q, T), times its own (H, T, R).

    The second hop begins where the first one ends, at the row of the reasoning's token itself; the authors' code takes
    the row before it.
    """
    return to_reasoning @ from_reasoning


def find_reasoning(text: str, spans: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """Finds the reasoning between <think> and </think> in an answer, and where the answer proper begins.

    Args:
        text (`str`): the answer.
        spans (`Sequence[tuple[int, int]]`): of each token its first character, and the one after its last.

    Returns:
        `tuple[list[int], int]`: the places of its tokens; the character after </think>.

    Raises:
        ValueError: if there is no reasoning, or no word after it.
    """
    found = REASONING.search(text)
    if found is None:
        raise ValueError(
            "form two-hop needs an answer with its reasoning between <think> and </think> and words after it, but "
            f"this one begins {text[:40]!r}: take the form contribution"
        )
    start, end = found.span(1)
    return [place for place, (low, high) in enumerate(spans) if low < end and high > start], found.end()


def split_answer(tokenizer: Any, whole: Sequenced) -> tuple[Sequenced, list[int]]:
    """The sequence in which only words after the reasoning have rows, and the positions of the reasoning's tokens."""
    first = whole.prompt_length
    places, end = find_reasoning(*decode_each(tokenizer, whole.inputs["input_ids"][0, first:].tolist()))
    words = [word if word.answer and word.start >= end else replace(word, rows=()) for word in whole.words]
    return replace(whole, words=tuple(words)), [first + place for place in places]

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Which texts may be written when combinations of colour and shape, or of relation and shape, are held out.

Whoever makes a text also makes its `Content`: what it says of each thing, and beside which landmark. A combination is
named if the words leave exactly one colour and one shape ("azure heart", "blue round solid"), or one shape for the
landmark of a relation ("under the plus"). Broad words ("bluish heart", "above the figure") name none. A question is
read together with its answer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeVar

from .language import meaning_of
from .world import HELD_OUT_COLOURS, HELD_OUT_LANDMARKS, Combinations

# Draws after the first one, until a text of the same kind is allowed.
RETRIES = 100


@dataclass(frozen=True)
class Content:
    """What a text says."""

    looks: tuple[str, ...] = ()
    landmarks: tuple[tuple[str, str], ...] = ()


class _Draft(Protocol):
    @property
    def content(self) -> Content: ...


Draft = TypeVar("Draft", bound=_Draft)


def names_held_out(content: Content) -> bool:
    """Returns whether a text names a combination that can be held out."""
    return any(is_held_out_look(words) for words in content.looks) or any(
        _only_shape(words) == HELD_OUT_LANDMARKS[relation] for relation, words in content.landmarks
    )


def allows(combinations: Combinations, content: Content) -> bool:
    """Returns whether a text may be written about an image with these combinations."""
    return combinations is Combinations.ALL or names_held_out(content) == (combinations is Combinations.HELD_OUT)


def draw_allowed(
    draw: Callable[[], Draft | None], combinations: Combinations, answer: Callable[[Draft], str | None]
) -> Draft | None:
    """Draws a text of one kind until it is allowed and has the answer that the first draw had.

    So the kinds and the shares of "yes" and "no" are about those of texts that may name any combination. Without the
    second rule, nine tenths of the questions whether there is something with a held-out pair would have the answer
    "yes".
    """
    first = draw()
    if first is None or allows(combinations, first.content):
        return first
    for _ in range(RETRIES):
        other = draw()
        if other is not None and allows(combinations, other.content) and answer(other) == answer(first):
            return other
    return None


@lru_cache(maxsize=100_000)
def is_held_out_look(words: str) -> bool:
    """Returns whether words about one thing leave one colour and one shape, and this pair can be held out."""
    colours, shape = meaning_of(words).colours, _only_shape(words)
    return shape is not None and colours == {HELD_OUT_COLOURS[shape]}


@lru_cache(maxsize=100_000)
def _only_shape(words: str) -> str | None:
    """Returns the shape that words about one thing leave; None if they leave several."""
    shapes = meaning_of(words).shapes
    return next(iter(shapes)) if len(shapes) == 1 else None

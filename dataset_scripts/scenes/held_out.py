# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Which texts may be written when combinations of colour and shape, or of relation and shape, are held out.

Whoever makes a text also makes its `Content`: what it says of each thing, and beside which landmark. A combination is
named if the words leave exactly one colour and one shape ("azure heart", "blue round solid"), or one shape for the
landmark of a relation ("under the plus"). Broad words ("bluish heart", "above the figure") name none. A question is
read together with its answer.
"""

from dataclasses import dataclass
from functools import lru_cache

from .language import meaning_of
from .world import HELD_OUT_COLOURS, HELD_OUT_LANDMARKS, Combinations


@dataclass(frozen=True)
class Content:
    """What a text says.

    Args:
        looks (`tuple[str, ...]`): For each thing, words about it in any order: `"the large star blue"` for "What color
            is the large star?" with the answer "blue".
        landmarks (`tuple[tuple[str, str], ...]`): For each relation its name and words about its second thing.
    """

    looks: tuple[str, ...] = ()
    landmarks: tuple[tuple[str, str], ...] = ()


def names_held_out(content: Content) -> bool:
    """Returns whether a text names a combination that can be held out.

    Args:
        content (`Content`): What the text says.
    """
    return any(is_held_out_look(words) for words in content.looks) or any(
        _only_shape(words) == HELD_OUT_LANDMARKS[relation] for relation, words in content.landmarks
    )


def allows(combinations: Combinations, content: Content) -> bool:
    """Returns whether a text may be written about an image with these combinations.

    Args:
        combinations (`Combinations`): The combinations of the image: with `SEEN` no text names one that is held out,
            with `HELD_OUT` every text does.
        content (`Content`): What the text says.
    """
    return combinations is Combinations.ALL or names_held_out(content) == (combinations is Combinations.HELD_OUT)


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

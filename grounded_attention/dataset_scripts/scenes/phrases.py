# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Phrases about objects of a scene: the choice of attributes and of words, and which name a held-out combination."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Protocol, TypeVar

from .language import COLOUR_WORDS, NOUNS, PLURALS, SHAPE_ADJECTIVES, SIZE_WORDS, TEXTURE_WORDS, meaning_of
from .world import HELD_OUT_COLOURS, HELD_OUT_LANDMARKS, Combinations, SceneObject

# Whether phrases about an entity usually contain an attribute. The five annotators follow an entity's habit most of
# the time, so that the phrases about it differ in words only, or in their attributes.
Habit = Mapping[str, bool]
ATTRIBUTE_RATES = {"shapes": 0.8, "colours": 0.75, "sizes": 0.35, "textures": 0.4}
DEPARTURE_RATE = 0.12  # probability that an annotator departs from the habit
BROAD_WORD_RATE = 0.15  # probability of a broad word instead of a narrow one
AFTER_NOUN = ("stripes", "dots", "spots")

WORDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "sizes": SIZE_WORDS,
    "colours": COLOUR_WORDS,
    "textures": TEXTURE_WORDS,
    "shapes": NOUNS,
}
SINGULAR_DETERMINERS = ("a", "a", "a", "the", "the", "one")
COUNT_DETERMINERS = {2: ("two", "the two", "a pair of", "a couple of", "both"), 3: ("three", "the three")}
VAGUE_DETERMINERS = ("several", "some", "a group of")


def draw_habit(rng: random.Random) -> Habit:
    """Draws the attributes that phrases about an entity usually contain."""
    return {attribute: rng.random() < rate for attribute, rate in ATTRIBUTE_RATES.items()}


def object_phrase(items: Sequence[SceneObject], habit: Habit, detail: float, rng: random.Random) -> str:
    """Writes a phrase that is true of one object, or of each of several objects."""
    included = {}
    for attribute, usual in habit.items():
        included[attribute] = usual != (rng.random() < DEPARTURE_RATE) or rng.random() < detail
    if included["sizes"]:
        size = _word("sizes", _shared(items, "sizes"), rng)
    else:
        size = ""
    if included["colours"]:
        colour = _word("colours", _shared(items, "colours"), rng)
    else:
        colour = ""
    texture = _texture_word(_shared(items, "textures"), rng) if included["textures"] else ""
    noun = _noun(items, _shared(items, "shapes") if included["shapes"] else (), rng)
    before = [size, *rng.sample(["" if texture in AFTER_NOUN else texture, colour], 2), noun]
    after = ["with", texture] if texture in AFTER_NOUN else []
    words = [word for word in (*before, *after) if word]
    return " ".join((_determiner(len(items), words[0], rng), *words))


def _shared(items: Sequence[SceneObject], attribute: str) -> tuple[str, ...]:
    """Returns the names of an attribute that fit every object."""
    names = getattr(items[0], attribute)
    if len(items) == 1:
        return names
    return tuple(name for name in names if all(name in getattr(item, attribute) for item in items))


def _word(attribute: str, names: Sequence[str], rng: random.Random) -> str:
    """Returns a word for one of the names, sometimes a broad one; an empty text without names."""
    if not names:
        return ""
    narrow, broad = _words(attribute, rng.choice(names))
    return rng.choice(broad if broad and rng.random() < BROAD_WORD_RATE else narrow)


@cache
def _words(attribute: str, name: str) -> tuple[list[str], list[str]]:
    """Returns the words with only this meaning, and the broader words."""
    table = WORDS[attribute]
    narrow = [word for word, allowed in table.items() if allowed == (name,)]
    broad = []
    for word, allowed in table.items():
        if name in allowed and len(allowed) > 1:
            broad.append(word)
    return narrow, broad


def _texture_word(names: Sequence[str], rng: random.Random) -> str:
    """Returns a word as `_word` does, but seldom one for "plain"."""
    if "plain" in names and rng.random() < 0.6:
        return ""
    return _word("textures", names, rng)


def _noun(items: Sequence[SceneObject], names: Sequence[str], rng: random.Random) -> str:
    """Returns a noun, plural for several objects, sometimes with a shape adjective; a broad noun without names."""
    looks = tuple(item.shapes for item in items)
    if names:
        fitting = _words("shapes", rng.choice(names))[0]
    else:
        fitting = _broad_nouns(looks)
    noun = rng.choice(fitting)
    adjectives = [] if names else _shape_adjectives(looks)
    if adjectives and rng.random() < 0.4:
        adjective = rng.choice(adjectives) + " "
    else:
        adjective = ""
    return adjective + (noun if len(items) == 1 else PLURALS[noun])


@cache
def _broad_nouns(looks: tuple[tuple[str, ...], ...]) -> list[str]:
    """Returns the nouns that fit each of these looks under each of its names."""
    broad = []
    for word, allowed in NOUNS.items():
        if len(allowed) > 1 and all(set(shapes) <= set(allowed) for shapes in looks):
            broad.append(word)
    return broad


@cache
def _shape_adjectives(looks: tuple[tuple[str, ...], ...]) -> list[str]:
    return [word for word, allowed in SHAPE_ADJECTIVES.items() if all(set(shapes) & set(allowed) for shapes in looks)]


def _determiner(count: int, next_word: str, rng: random.Random) -> str:
    if count == 1:
        word = rng.choice(SINGULAR_DETERMINERS)
        if word == "a" and next_word[0] in "aeiou":
            return "an"
        return word
    return rng.choice(COUNT_DETERMINERS[count] if rng.random() < 0.6 else VAGUE_DETERMINERS)


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

    @property
    def verdict(self) -> str | None: ...


Draft = TypeVar("Draft", bound=_Draft)


def names_held_out(content: Content) -> bool:
    """Returns whether a text names a combination that can be held out."""
    return any(is_held_out_look(words) for words in content.looks) or any(
        _only_shape(words) == HELD_OUT_LANDMARKS[relation] for relation, words in content.landmarks
    )


def allows(combinations: Combinations, content: Content) -> bool:
    """Returns whether a text may be written about an image with these combinations."""
    return combinations is Combinations.ALL or names_held_out(content) == (combinations is Combinations.HELD_OUT)


def draw_allowed(draw: Callable[[], Draft | None], combinations: Combinations) -> Draft | None:
    """Draws a text of one kind until it is allowed and has the verdict of the first draw, so that shares stay."""
    first = draw()
    if first is None or allows(combinations, first.content):
        return first
    for _ in range(RETRIES):
        other = draw()
        if other is not None and allows(combinations, other.content) and other.verdict == first.verdict:
            return other
    return None


@lru_cache(maxsize=100_000)
def is_held_out_look(words: str) -> bool:
    """Returns whether words about one thing leave one colour and one shape, and this pair can be held out."""
    colours = meaning_of(words).colours
    shape = _only_shape(words)
    return shape is not None and colours == {HELD_OUT_COLOURS[shape]}


@lru_cache(maxsize=100_000)
def _only_shape(words: str) -> str | None:
    """Returns the shape that words about one thing leave; None if they leave several."""
    shapes = meaning_of(words).shapes
    if len(shapes) == 1:
        return next(iter(shapes))
    return None

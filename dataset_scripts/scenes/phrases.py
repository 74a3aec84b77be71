# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Phrases about objects of a scene: which attributes are said, in which words."""

import random
from collections.abc import Mapping, Sequence
from functools import cache

from .language import COLOUR_WORDS, NOUNS, PLURALS, SHAPE_ADJECTIVES, SIZE_WORDS, TEXTURE_WORDS
from .world import SceneObject

# Whether an attribute is usually said of an entity. The five annotators follow an entity's habit most of the time, so
# that the phrases about it differ in words only, or in what they say.
Habit = Mapping[str, bool]
SAID = {"shapes": 0.8, "colours": 0.75, "sizes": 0.35, "textures": 0.4}
OWN_WAY = 0.12  # how often an annotator departs from the habit
BROAD = 0.15  # how often a broad word takes the place of a narrow one
AFTER_NOUN = ("stripes", "dots", "spots")

WORDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "sizes": SIZE_WORDS,
    "colours": COLOUR_WORDS,
    "textures": TEXTURE_WORDS,
}
SINGULAR = ("a", "a", "a", "the", "the", "one")
EXACT = {2: ("two", "the two", "a pair of", "a couple of", "both"), 3: ("three", "the three")}
SEVERAL = ("several", "some", "a group of")


def draw_habit(rng: random.Random) -> Habit:
    """Which attributes are usually said of an entity."""
    return {attribute: rng.random() < rate for attribute, rate in SAID.items()}


def object_phrase(items: Sequence[SceneObject], habit: Habit, detail: float, rng: random.Random) -> str:
    """A phrase that is true of one object, or of all of several.

    Args:
        items: The objects.
        habit: What is usually said of them.
        detail: Probability, from 0 to 1, to say an attribute that would not be said.
        rng: Draws the words.
    """
    said = {
        attribute: usual != (rng.random() < OWN_WAY) or rng.random() < detail for attribute, usual in habit.items()
    }
    shared = {attribute: _shared(items, attribute) for attribute in SAID}
    size = _word("sizes", shared["sizes"], rng) if said["sizes"] else ""
    colour = _word("colours", shared["colours"], rng) if said["colours"] else ""
    texture = _texture_word(shared["textures"], rng) if said["textures"] else ""
    noun = _noun(items, shared["shapes"] if said["shapes"] else (), rng)
    before = [size, *rng.sample(["" if texture in AFTER_NOUN else texture, colour], 2), noun]
    after = ["with", texture] if texture in AFTER_NOUN else []
    words = [word for word in (*before, *after) if word]
    return " ".join((_determiner(len(items), words[0], rng), *words))


def _shared(items: Sequence[SceneObject], attribute: str) -> tuple[str, ...]:
    """The names of an attribute that fit every object."""
    names = getattr(items[0], attribute)
    if len(items) == 1:
        return names
    return tuple(name for name in names if all(name in getattr(item, attribute) for item in items))


def _word(attribute: str, names: Sequence[str], rng: random.Random) -> str:
    """A word for one of the names, sometimes a broad one; nothing if there is no name."""
    if not names:
        return ""
    narrow, broad = _words(attribute, rng.choice(names))
    return rng.choice(broad if broad and rng.random() < BROAD else narrow)


@cache
def _words(attribute: str, name: str) -> tuple[list[str], list[str]]:
    """The words that mean this name alone, and those that mean others too."""
    table = WORDS[attribute]
    narrow = [word for word, allowed in table.items() if allowed == (name,)]
    broad = [word for word, allowed in table.items() if name in allowed and len(allowed) > 1]
    return narrow, broad


def _texture_word(names: Sequence[str], rng: random.Random) -> str:
    """As `_word`; that something is plain is seldom worth saying."""
    return "" if "plain" in names and rng.random() < 0.6 else _word("textures", names, rng)


def _noun(items: Sequence[SceneObject], names: Sequence[str], rng: random.Random) -> str:
    """A noun, plural for several, sometimes with an adjective of shape; a broad one if no name of a shape is given."""
    looks = tuple(item.shapes for item in items)
    fitting = _nouns_of(rng.choice(names)) if names else _broad_nouns(looks)
    noun = rng.choice(fitting)
    adjectives = [] if names else _shape_adjectives(looks)
    adjective = rng.choice(adjectives) + " " if adjectives and rng.random() < 0.4 else ""
    return adjective + (noun if len(items) == 1 else PLURALS[noun])


@cache
def _nouns_of(shape: str) -> list[str]:
    return [word for word, allowed in NOUNS.items() if allowed == (shape,)]


@cache
def _broad_nouns(looks: tuple[tuple[str, ...], ...]) -> list[str]:
    """The nouns that fit every one of these looks, whichever of its names it is called by."""
    return [
        word
        for word, allowed in NOUNS.items()
        if len(allowed) > 1 and all(set(shapes) <= set(allowed) for shapes in looks)
    ]


@cache
def _shape_adjectives(looks: tuple[tuple[str, ...], ...]) -> list[str]:
    return [word for word, allowed in SHAPE_ADJECTIVES.items() if all(set(shapes) & set(allowed) for shapes in looks)]


def _determiner(count: int, next_word: str, rng: random.Random) -> str:
    if count == 1:
        word = rng.choice(SINGULAR)
        return "an" if word == "a" and next_word[0] in "aeiou" else word
    return rng.choice(EXACT[count] if rng.random() < 0.6 else SEVERAL)

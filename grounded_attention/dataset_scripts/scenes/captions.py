# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Captions of scenes, their truth, and the phrases in them: attributes, words, and held-out combinations.

A caption consists of words, mentions (phrases about an entity) and facts (relations between mentions). It is true of a
scene if its phrases can be given distinct referents so that every fact holds (`readings`). `annotators` writes only
captions with exactly one reading, so every phrase has one referent, but often only together with the rest of its
sentence: "left of the cube" distinguishes "the red ball" from another red ball.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations, product
from typing import Protocol, TypeVar

from .language import (
    COLOUR_WORDS,
    NOUNS,
    PLURALS,
    SHAPE_ADJECTIVES,
    SIZE_WORDS,
    TEXTURE_WORDS,
    Meaning,
    meaning_of,
    referents,
)
from .world import HELD_OUT_COLOURS, HELD_OUT_LANDMARKS, Combinations, Scene, SceneObject, relation_holds

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
    names: dict[str, tuple[str, ...]] = {}
    for attribute, usual in habit.items():
        names[attribute] = ()
        if usual != (rng.random() < DEPARTURE_RATE) or rng.random() < detail:
            names[attribute] = _shared(items, attribute)
    size = _word("sizes", names["sizes"], rng)
    colour = _word("colours", names["colours"], rng)
    texture = ""
    if "plain" not in names["textures"] or rng.random() >= 0.6:  # few write "plain"
        texture = _word("textures", names["textures"], rng)
    noun = _noun(items, names["shapes"], rng)
    adjectives = [texture, colour]
    after = []
    if texture in AFTER_NOUN:
        adjectives = ["", colour]
        after = ["with", texture]
    words = [word for word in (size, *rng.sample(adjectives, 2), noun, *after) if word]
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


def _noun(items: Sequence[SceneObject], names: Sequence[str], rng: random.Random) -> str:
    """Returns a noun, plural for several objects, sometimes with a shape adjective; a broad noun without names."""
    if names:
        nouns, _ = _words("shapes", rng.choice(names))
        adjectives: Sequence[str] = ()
    else:
        nouns, adjectives = _broad_words(tuple(item.shapes for item in items))
    noun = rng.choice(nouns)
    if len(items) > 1:
        noun = PLURALS[noun]
    if adjectives and rng.random() < 0.4:
        return f"{rng.choice(adjectives)} {noun}"
    return noun


@cache
def _broad_words(looks: tuple[tuple[str, ...], ...]) -> tuple[list[str], list[str]]:
    """Returns the nouns that fit each of these looks under each of its names, and the adjectives that fit one."""
    nouns = []
    for word, allowed in NOUNS.items():
        if len(allowed) > 1 and all(set(shapes) <= set(allowed) for shapes in looks):
            nouns.append(word)
    adjectives = []
    for word, allowed in SHAPE_ADJECTIVES.items():
        if all(set(shapes) & set(allowed) for shapes in looks):
            adjectives.append(word)
    return nouns, adjectives


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
    if any(is_held_out_look(words) for words in content.looks):
        return True
    return any(_only_shape(words) == HELD_OUT_LANDMARKS[relation] for relation, words in content.landmarks)


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
    if len(shapes) != 1:
        return None
    [shape] = shapes
    return shape


@dataclass(frozen=True)
class Entity:
    """The referent of a chain of phrases: objects of the scene by number, or its "ground" or "light" (no objects)."""

    kind: str
    members: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Mention:
    """A phrase and its referent; None for words about nothing visible, such as "each other"."""

    text: str
    entity: Entity | None

    @property
    def meaning(self) -> Meaning:
        """The meaning of the phrase."""
        return meaning_of(self.text)

    @property
    def members(self) -> frozenset[int]:
        """The numbers of the objects that the phrase refers to."""
        if self.entity:
            return self.entity.members
        return frozenset()


@dataclass(frozen=True)
class Fact:
    """A relation between two mentions, or, from a mention to itself, among its objects."""

    relation: str
    subject: int
    target: int


@dataclass(frozen=True)
class Caption:
    """Words and numbers of mentions in order, the mentions, and the facts; lower case, without the final period.

    Words for a relation ("to the left of") are one token.
    """

    tokens: tuple[str | int, ...]
    mentions: tuple[Mention, ...]
    facts: tuple[Fact, ...]

    @property
    def text(self) -> str:
        """The words of the caption."""
        return " ".join(token if isinstance(token, str) else self.mentions[token].text for token in self.tokens)

    def written(self) -> tuple[str, list[tuple[Mention, int, int]]]:
        """The caption in Flickr30K's form (spaces between words, a capital, a period); its mentions, each with the
        start and the end of its characters.
        """
        text = ""
        spans = []
        for token in self.tokens:
            start = len(text)
            if isinstance(token, int):
                mention = self.mentions[token]
                text += mention.text
                spans.append((mention, start, len(text)))
            else:
                text += token
            text += " "
        return f"{text[0].upper()}{text[1:]}.", spans

    @property
    def content(self) -> Content:
        """What the caption says: its phrases about something visible, and the landmarks of its facts."""
        phrases = tuple(mention.text for mention in self.mentions if mention.entity)
        landmarks = tuple((fact.relation, self.mentions[fact.target].text) for fact in self.facts)
        return Content(phrases, landmarks)


def readings(scene: Scene, caption: Caption) -> list[tuple[frozenset[int], ...]]:
    """Finds all ways to assign referents to the mentions so that the caption is true of a scene."""
    choices = []
    for mention in caption.mentions:
        choices.append([frozenset[int]()] if mention.entity is None else referents(scene, mention.meaning))
    ways = []
    for way in product(*choices):
        if sum(map(len, way)) > len(frozenset().union(*way)):  # two mentions share an object
            continue
        if all(fact_holds(scene, fact.relation, way[fact.subject], way[fact.target]) for fact in caption.facts):
            ways.append(way)
    return ways


def caption_holds(scene: Scene, caption: Caption) -> bool:
    """Returns whether a caption is true of a scene."""
    return bool(readings(scene, caption))


def needs_context(scene: Scene, mention: Mention) -> bool:
    """Returns whether a phrase about objects, read alone, fits more than its referent."""
    return bool(mention.members) and len(referents(scene, mention.meaning)) > 1


def fact_holds(scene: Scene, relation: str, subject: frozenset[int], target: frozenset[int]) -> bool:
    """Returns whether a relation holds between all of `subject` and all of `target`, or, if equal, among them."""
    pairs: Iterable[tuple[int, int]] = product(subject, target)
    if subject == target:
        pairs = combinations(sorted(subject), 2)
    return all(relation_holds(scene, relation, first, second) for first, second in pairs)

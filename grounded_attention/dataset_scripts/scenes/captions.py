# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Captions of scenes, and their truth.

A caption consists of words, mentions (phrases about an entity) and facts (relations between mentions). It is true of a
scene if its phrases can be given distinct referents so that every fact holds (`readings`). `annotators` writes only
captions with exactly one reading, so every phrase has one referent, but often only together with the rest of its
sentence: "left of the cube" distinguishes "the red ball" from another red ball.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, product

from .language import Meaning, meaning_of, referents
from .phrases import Content
from .world import Scene, relation_holds


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

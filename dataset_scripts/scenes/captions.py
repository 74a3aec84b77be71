# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a caption of a scene is, and when it is true.

A caption is words, mentions (phrases that speak of an entity) and facts (relations between mentions). It is true of a
scene if its phrases can be given distinct referents so that every fact holds (`readings`). `annotators` writes
only captions with exactly one reading, so every phrase has one referent, though often only together with the rest of
its sentence: "the red ball" where there are two is told apart by "left of the cube".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product

from .language import Meaning, meaning_of, referents
from .world import Scene, relation_holds


@dataclass(frozen=True)
class Entity:
    """What a chain of phrases speaks of: objects of the scene by number, or its "ground" or "light" (no objects)."""

    kind: str
    members: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Mention:
    """A phrase and what it speaks of; None for words that mean nothing visible, such as "each other"."""

    text: str
    entity: Entity | None

    @property
    def meaning(self) -> Meaning:
        """What the phrase means."""
        return _meaning(self.text)

    @property
    def members(self) -> frozenset[int]:
        """The numbers of the objects it speaks of."""
        return self.entity.members if self.entity else frozenset()


@dataclass(frozen=True)
class Fact:
    """A relation between two mentions, or, of a mention to itself, among its own objects."""

    relation: str
    subject: int
    target: int


@dataclass(frozen=True)
class Caption:
    """Words and numbers of mentions in order, the mentions, and the facts. Lower case, without the final period."""

    tokens: tuple[str | int, ...]
    mentions: tuple[Mention, ...]
    facts: tuple[Fact, ...]

    @property
    def text(self) -> str:
        """The caption's words."""
        return " ".join(token if isinstance(token, str) else self.mentions[token].text for token in self.tokens)


@lru_cache(maxsize=100_000)
def _meaning(text: str) -> Meaning:
    return meaning_of(text)


def readings(scene: Scene, caption: Caption) -> list[tuple[frozenset[int], ...]]:
    """All ways to give the mentions referents in a scene so that the caption is true.

    Returns:
        For each way the object numbers of every mention (an empty set for ground, light and not visual ones). Mentions
        of one caption never share an object.
    """
    choices = [
        [frozenset[int]()] if mention.entity is None else referents(scene, mention.meaning)
        for mention in caption.mentions
    ]
    return [
        way
        for way in product(*choices)
        if sum(map(len, way)) == len(frozenset().union(*way))
        and all(fact_holds(scene, fact.relation, way[fact.subject], way[fact.target]) for fact in caption.facts)
    ]


def caption_holds(scene: Scene, caption: Caption) -> bool:
    """Whether a caption, by its meaning, is true of a scene, whichever scene it was written for."""
    return bool(readings(scene, caption))


def needs_context(scene: Scene, mention: Mention) -> bool:
    """Whether a phrase about objects, read by itself, fits more than what it speaks of."""
    return bool(mention.members) and len(referents(scene, mention.meaning)) > 1


def fact_holds(scene: Scene, relation: str, subject: frozenset[int], target: frozenset[int]) -> bool:
    """Whether all objects of `subject` stand in the relation to all of `target`, or, if the same, to each other."""
    pairs: Iterable[tuple[int, int]] = product(subject, target)
    if subject == target:
        pairs = combinations(sorted(subject), 2)
    return all(relation_holds(scene, relation, first, second) for first, second in pairs)

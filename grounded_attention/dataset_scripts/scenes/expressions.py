# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Referring expressions: phrases that identify one object of a scene, as players of RefCOCO+ write them.

An expression is true of its object only: read alone, or together with a relation to another object. As in RefCOCO+,
expressions contain no position in the image, so left and right do not occur.
"""

import random

from .annotators import RELATION_WORDS
from .captions import Caption, Entity, Fact, Mention, readings
from .held_out import Content, allows
from .language import meaning_of, referents
from .phrases import draw_habit, object_phrase
from .world import Combinations, Scene, relation_holds

RELATIONS = ("next_to", "above", "below")
PER_OBJECT = 3
ATTEMPTS = 30
# Probability of a relation even if attributes alone are enough.
RELATION_RATE = 0.3
DETERMINERS = ("a", "an", "the", "one")
DROP_ARTICLE_RATE = 0.7


def refer(scene: Scene, number: int, rng: random.Random, combinations: Combinations = Combinations.ALL) -> list[str]:
    """Writes up to three different expressions for an object; none if the object cannot be identified."""
    habit, found = draw_habit(rng), dict[str, None]()
    for attempt in range(ATTEMPTS):
        phrase = object_phrase([scene.objects[number]], habit, attempt / ATTEMPTS, rng)
        is_enough = _is_unique(scene, number, phrase) and allows(combinations, Content((phrase,)))
        if rng.random() < RELATION_RATE or not is_enough:
            phrase = _related(scene, number, phrase, attempt / ATTEMPTS, rng, combinations) or ""
        if phrase:
            found[_drop_article(phrase, rng)] = None
        if len(found) == PER_OBJECT:
            break
    return list(found)


def _is_unique(scene: Scene, number: int, phrase: str) -> bool:
    """Returns whether the phrase, read alone, is true of this object only."""
    return referents(scene, meaning_of(phrase)) == [frozenset((number,))]


def _related(
    scene: Scene, number: int, phrase: str, detail: float, rng: random.Random, combinations: Combinations
) -> str | None:
    """Adds a relation to another object.

    Returns None if the result does not identify the object in every reading, or `combinations` does not allow it.
    """
    pairs = [
        (relation, other)
        for relation in RELATIONS
        for other in range(len(scene.objects))
        if other != number and relation_holds(scene, relation, number, other)
    ]
    if not pairs:
        return None
    relation, other = rng.choice(pairs)
    target = object_phrase([scene.objects[other]], draw_habit(rng), detail, rng)
    mentions = tuple(
        Mention(text, Entity("object", frozenset((index,)))) for text, index in ((phrase, number), (target, other))
    )
    caption = Caption((0, rng.choice(RELATION_WORDS[relation]), 1), mentions, (Fact(relation, 0, 1),))
    if not allows(combinations, caption.content):
        return None
    ways = readings(scene, caption)
    return caption.text if ways and all(way[0] == {number} for way in ways) else None


def _drop_article(phrase: str, rng: random.Random) -> str:
    """Drops the first article in most cases, as players do."""
    first, _, rest = phrase.partition(" ")
    return rest if first in DETERMINERS and rng.random() < DROP_ARTICLE_RATE else phrase

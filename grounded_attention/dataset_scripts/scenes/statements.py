# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Statements about two scenes that are true or false, in the manner of NLVR2.

The descriptions of the scenes alone decide a statement. Looks between two names leave some statements undecided (is an
orange-red ball a red ball?); those are not used. As in NLVR2, one statement is made about four pairs of scenes, true
of two and false of two, so its words alone do not reveal the answer.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations, product
from operator import and_, ne, or_
from typing import NamedTuple

from .annotators import RELATION_WORDS
from .captions import Content, draw_allowed
from .language import PLURALS, Meaning, exists, fits, is_certain, meaning_of, with_article
from .world import Combinations, Scene, relation_holds

PAIRS = 4
# With fewer scenes four pairs are rare; one true and one false pair are enough.
FEW = 6
# Number of pairs tried for a statement, and number of statements tried.
CANDIDATES = 24
ATTEMPTS = 60
COUNTS = ("no", "one", "two", "three")
IMAGE_WORDS = ("image", "picture", "photo")
# Side -> the truth of a statement about it.
SIDES: dict[str, Callable[[bool, bool], bool]] = {"left": lambda left, right: left, "right": lambda left, right: right}
GROUND_WORDS = {"wood": "a wooden floor", "stone": "a stony floor", "grass": "grass", "sand": "sand"}


class _Draft(NamedTuple):
    """A statement without pairs: its text, whether a scene shows what it is about (None: undecided), the truth that
    follows from both scenes, and what it says.
    """

    text: str
    shows: Callable[[Scene], bool | None]
    truth: Callable[[bool, bool], bool]
    content: Content = Content()
    verdict: None = None

    def holds(self, left: Scene, right: Scene) -> bool | None:
        """The truth about a left and a right scene; None if it depends on what is undecided."""
        ways = []
        for shown in (self.shows(left), self.shows(right)):
            ways.append((False, True) if shown is None else (shown,))
        found = {self.truth(*way) for way in product(*ways)}
        if len(found) == 1:
            return found.pop()
        return None


Kind = Callable[[Scene, random.Random], _Draft]


@dataclass(frozen=True)
class Statement:
    """A statement, and pairs of scenes (their image ids) with its truth for each."""

    text: str
    pairs: list[tuple[tuple[str, str], bool]]


def state_all(
    name: str, scenes: Sequence[tuple[str, Scene]], combinations: Combinations = Combinations.ALL
) -> list[Statement]:
    """Makes statements about pairs of scenes, one for each scene if possible."""
    drawn = (state(scenes, random.Random(f"{name}/{number}"), combinations) for number in range(len(scenes)))
    return [statement for statement in drawn if statement is not None]


def state(
    scenes: Sequence[tuple[str, Scene]], rng: random.Random, combinations: Combinations = Combinations.ALL
) -> Statement | None:
    """Makes a statement that is true of two pairs of scenes and false of two others."""
    needed = PAIRS // 2 if len(scenes) >= FEW else 1  # pairs that are true, and pairs that are false
    for _ in range(ATTEMPTS if len(scenes) > 1 else 0):
        kind = rng.choice(KINDS)
        draft = draw_allowed(lambda: kind(rng.choice(scenes)[1], rng), combinations)  # noqa: B023
        if draft is None:
            continue
        pairs_of: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
        for _ in range(CANDIDATES):
            (left, first), (right, second) = rng.sample(scenes, 2)
            truth = draft.holds(first, second)
            if truth is not None and (left, right) not in pairs_of[truth]:
                pairs_of[truth].append((left, right))
            if all(len(pairs) >= needed for pairs in pairs_of.values()):
                chosen = [(pair, truth) for truth, pairs in pairs_of.items() for pair in pairs[:needed]]
                rng.shuffle(chosen)
                return Statement(draft.text, chosen)
    return None


def count_of(scene: Scene, meaning: Meaning) -> int | None:
    """Counts the objects that a phrase fits."""
    certain = sum(is_certain(item, meaning) for item in scene.objects)
    if certain == sum(fits(item, meaning) for item in scene.objects):
        return certain
    return None


def _noun(scene: Scene, rng: random.Random) -> tuple[str, str, Meaning]:
    """Returns a name for an object of the scene, singular and plural, and its meaning."""
    item = rng.choice(scene.objects)
    noun = "object"
    if rng.random() < 0.7:
        noun = rng.choice(item.shapes)
    before = ""
    if rng.random() < 0.6 or noun == "object":
        before = rng.choice(item.colours) + " "
    return before + noun, before + PLURALS[noun], meaning_of(before + noun)


def _of_noun(text: str, truth: Callable[[bool, bool], bool], scene: Scene, rng: random.Random) -> _Draft:
    """A statement about one noun, whose truth follows from whether either scene shows it."""
    noun, _, _ = _noun(scene, rng)
    picture = rng.choice(IMAGE_WORDS)
    words = {"noun": noun, "a_noun": with_article(noun), "picture": picture, "a_picture": with_article(picture)}
    return _Draft(text.format(**words), partial(exists, noun), truth, Content((noun,)))


def _in_side(scene: Scene, rng: random.Random) -> _Draft:
    noun, _, _ = _noun(scene, rng)
    side = rng.choice(tuple(SIDES))
    text = f"There is {with_article(noun)} in the {side} {rng.choice(IMAGE_WORDS)}."
    return _Draft(text, partial(exists, noun), SIDES[side], Content((noun,)))


def _count_in_side(scene: Scene, rng: random.Random) -> _Draft:
    noun, plural, meaning = _noun(scene, rng)
    side = rng.choice(tuple(SIDES))
    number = rng.choice((1, 2, 2, 3))
    if number == 1:
        what = f"is one {noun}"
    else:
        what = f"are {COUNTS[number]} {plural}"

    def shows(scene: Scene) -> bool | None:
        counted = count_of(scene, meaning)
        if counted is None:
            return None
        return counted == number

    return _Draft(f"There {what} in the {side} {rng.choice(IMAGE_WORDS)}.", shows, SIDES[side], Content((noun,)))


def _related_in_any(scene: Scene, rng: random.Random) -> _Draft:
    """States a relation between two shapes; undecided if a look is borderline."""
    first, _, meaning = _noun(scene, rng)
    second, _, target = _noun(scene, rng)
    relation = rng.choice(tuple(RELATION_WORDS))
    words = rng.choice(RELATION_WORDS[relation])

    def shows(scene: Scene) -> bool | None:
        if count_of(scene, meaning) is None or count_of(scene, target) is None:
            return None
        for k, j in permutations(range(len(scene.objects)), 2):
            are_meant = fits(scene.objects[k], meaning) and fits(scene.objects[j], target)
            if are_meant and relation_holds(scene, relation, k, j):
                return True
        return False

    picture = with_article(rng.choice(IMAGE_WORDS))
    text = f"There is {picture} that shows {with_article(first)} {words} {with_article(second)}."
    return _Draft(text, shows, or_, Content((first, second), ((relation, second),)))


def _grounds(scene: Scene, rng: random.Random) -> _Draft:
    words = GROUND_WORDS[scene.ground]
    truth = and_
    if rng.random() < 0.5:
        text = f"There is {words} in each {rng.choice(IMAGE_WORDS)}."
    else:
        side = rng.choice(tuple(SIDES))
        truth = SIDES[side]
        text = f"The {side} {rng.choice(IMAGE_WORDS)} shows {words}."
    return _Draft(text, lambda other: other.ground == scene.ground, truth)


# The kinds by weight; some fail if there are not enough true and false pairs.
KINDS: tuple[Kind, ...] = (
    *[partial(_of_noun, "There is {a_noun} in each {picture}.", and_)] * 2,
    partial(_of_noun, "No {picture} shows {a_noun}.", lambda first, second: not first and not second),
    *[partial(_of_noun, "There is {a_picture} that shows {a_noun}.", or_)] * 2,
    *[partial(_of_noun, "There is {a_noun} in one {picture} and no {noun} in the other.", ne)] * 2,
    *[_in_side] * 2,
    *[_count_in_side] * 3,
    *[_related_in_any] * 2,
    _grounds,
)

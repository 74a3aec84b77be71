# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Statements about two scenes that are true or false, in the manner of NLVR2.

A statement is decided from the descriptions of the scenes alone. Looks between two names leave some statements open
(is an orange-red ball a red ball?); of those none is made. As in NLVR2 one statement is made about four pairs of
scenes, and is true of two and false of two, so its words alone do not give the answer away.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .annotators import RELATION_WORDS
from .language import PLURALS, Meaning, fits, meaning_of
from .world import Scene, SceneObject, relation_holds

PAIRS = 4
# Below so many scenes there are hardly four pairs: one true and one false will do.
FEW = 6
# How many pairs are looked at for a statement, and how many statements are tried.
CANDIDATES = 24
ATTEMPTS = 60
SIDES = ("left", "right")
COUNTS = ("no", "one", "two", "three")
IMAGE_WORDS = ("image", "picture", "photo")
GROUND_WORDS = {"wood": "a wooden floor", "stone": "a stony floor", "grass": "grass", "sand": "sand"}

# Whether a statement is true of a left and a right scene; None where that can't be decided.
Truth = Callable[[Scene, Scene], bool | None]


@dataclass(frozen=True)
class Statement:
    """A statement and the image ids of pairs of scenes, with its truth of each."""

    text: str
    pairs: tuple[tuple[str, str], ...]
    labels: tuple[bool, ...]


def state_all(name: str, scenes: Sequence[tuple[str, Scene]]) -> list[Statement]:
    """Statements about pairs of these scenes, as many as there are scenes where enough can be said of them.

    Args:
        name: Seeds the draws.
        scenes: Image ids and scenes.
    """
    drawn = (state(scenes, random.Random(f"{name}/{number}")) for number in range(len(scenes)))
    return [statement for statement in drawn if statement is not None]


def state(scenes: Sequence[tuple[str, Scene]], rng: random.Random) -> Statement | None:
    """A statement that is true of two pairs of these scenes and false of two (of fewer than six scenes, of one pair
    each); None when none was found.

    Args:
        scenes: Image ids and scenes to choose from.
        rng: Draws words and pairs.
    """
    each = PAIRS // 2 if len(scenes) >= FEW else 1
    for _ in range(ATTEMPTS if len(scenes) > 1 else 0):
        text, holds = rng.choice(KINDS)(rng.choice(scenes)[1], rng)
        found: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
        for _ in range(CANDIDATES):
            (left, first), (right, second) = rng.sample(scenes, 2)
            truth = holds(first, second)
            if truth is not None and (left, right) not in found[truth]:
                found[truth].append((left, right))
            if all(len(pairs) >= each for pairs in found.values()):
                return _mixed(text, {truth: pairs[:each] for truth, pairs in found.items()}, rng)
    return None


def vocabulary() -> list[str]:
    """The words of statements, beside those of phrases and relations, sorted, with the full stop and the comma."""
    words = "there is are a an in the one other each no and that shows of object objects . ,".split()
    grounds = " ".join(GROUND_WORDS.values()).split()
    return sorted({*words, *SIDES, *COUNTS, *IMAGE_WORDS, *grounds})


def _mixed(text: str, found: dict[bool, list[tuple[str, str]]], rng: random.Random) -> Statement:
    pairs = [(pair, truth) for truth, listed in found.items() for pair in listed]
    rng.shuffle(pairs)
    return Statement(text, tuple(pair for pair, _ in pairs), tuple(truth for _, truth in pairs))


def count_of(scene: Scene, meaning: Meaning) -> int | None:
    """How many objects a phrase is true of; None where a look between two names leaves it open."""
    sure = sum(_surely(item, meaning) for item in scene.objects)
    return sure if sure == sum(fits(item, meaning) for item in scene.objects) else None


def _surely(item: SceneObject, meaning: Meaning) -> bool:
    """Whether the phrase is true of the object by whichever of its names it is called."""
    return (
        meaning.shapes.issuperset(item.shapes)
        and meaning.colours.issuperset(item.colours)
        and meaning.textures.issuperset(item.textures)
        and meaning.sizes.issuperset(item.sizes)
    )


def _noun(scene: Scene, rng: random.Random) -> tuple[str, str, Meaning]:
    """What an object of the scene may be called, alone and several of it, and what that means."""
    item = rng.choice(scene.objects)
    shape = rng.choice(item.shapes) if rng.random() < 0.7 else ""
    colour = rng.choice(item.colours) if rng.random() < 0.6 or not shape else ""
    before, noun = f"{colour} " if colour else "", shape or "object"
    return before + noun, before + PLURALS[noun], meaning_of(before + noun)


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _both(first: bool | None, second: bool | None) -> bool | None:
    """True if both are, false if one surely is not, else open."""
    return False if first is False or second is False else None if first is None or second is None else True


def _shows(meaning: Meaning) -> Callable[[Scene], bool | None]:
    """Whether a scene holds such an object; open if only a look between two names would do."""

    def holds(scene: Scene) -> bool | None:
        if any(_surely(item, meaning) for item in scene.objects):
            return True
        return None if any(fits(item, meaning) for item in scene.objects) else False

    return holds


def _negated(value: bool | None) -> bool | None:
    return None if value is None else not value


def _in_each(scene: Scene, rng: random.Random) -> tuple[str, Truth]:
    noun, _, meaning = _noun(scene, rng)
    shows = _shows(meaning)
    return f"There is {_a(noun)} in each {rng.choice(IMAGE_WORDS)}.", lambda a, b: _both(shows(a), shows(b))


def _in_none(scene: Scene, rng: random.Random) -> tuple[str, Truth]:
    noun, _, meaning = _noun(scene, rng)
    shows = _shows(meaning)
    text = f"No {rng.choice(IMAGE_WORDS)} shows {_a(noun)}."
    return text, lambda a, b: _both(_negated(shows(a)), _negated(shows(b)))


def _in_any(scene: Scene, rng: random.Random) -> tuple[str, Truth]:
    noun, _, meaning = _noun(scene, rng)
    shows = _shows(meaning)
    text = f"There is {_a(rng.choice(IMAGE_WORDS))} that shows {_a(noun)}."
    return text, lambda a, b: _negated(_both(_negated(shows(a)), _negated(shows(b))))


def _in_one_alone(scene: Scene, rng: random.Random) -> tuple[str, Truth]:
    noun, _, meaning = _noun(scene, rng)
    shows = _shows(meaning)

    def holds(left: Scene, right: Scene) -> bool | None:
        first, second = shows(left), shows(right)
        return None if first is None or second is None else first != second

    return f"There is {_a(noun)} in one {rng.choice(IMAGE_WORDS)} and no {noun} in the other.", holds


def _in_side(scene: Scene, rng: random.Random) -> tuple[str, Truth]:
    noun, _, meaning = _noun(scene, rng)
    side, shows = rng.choice(SIDES), _shows(meaning)
    text = f"There is {_a(noun)} in the {side} {rng.choice(IMAGE_WORDS)}."
    return text, lambda a, b: shows(a if side == "left" else b)


def _count_in_side(scene: Scene, rng: random.Random) -> tuple[str, Truth]:
    noun, plural, meaning = _noun(scene, rng)
    side, number = rng.choice(SIDES), rng.choice((1, 2, 2, 3))
    what = f"is one {noun}" if number == 1 else f"are {COUNTS[number]} {plural}"

    def holds(left: Scene, right: Scene) -> bool | None:
        counted = count_of(left if side == "left" else right, meaning)
        return None if counted is None else counted == number

    return f"There {what} in the {side} {rng.choice(IMAGE_WORDS)}.", holds


def _related_in_any(scene: Scene, rng: random.Random) -> tuple[str, Truth]:
    """A relation between two shapes; where their looks are clear, so is whether it holds."""
    first, second = (_noun(scene, rng) for _ in range(2))
    relation = rng.choice(tuple(RELATION_WORDS))
    words = rng.choice(RELATION_WORDS[relation])

    def within(scene: Scene) -> bool | None:
        if count_of(scene, first[2]) is None or count_of(scene, second[2]) is None:
            return None
        numbers = range(len(scene.objects))
        ones, others = ([k for k in numbers if fits(scene.objects[k], m)] for m in (first[2], second[2]))
        return any(k != j and relation_holds(scene, relation, k, j) for k in ones for j in others)

    text = f"There is {_a(rng.choice(IMAGE_WORDS))} that shows {_a(first[0])} {words} {_a(second[0])}."
    return text, lambda a, b: _negated(_both(_negated(within(a)), _negated(within(b))))


def _grounds(scene: Scene, rng: random.Random) -> tuple[str, Truth]:
    ground = scene.ground
    if rng.random() < 0.5:
        text = f"There is {GROUND_WORDS[ground]} in each {rng.choice(IMAGE_WORDS)}."
        return text, lambda a, b: a.ground == ground == b.ground
    side = rng.choice(SIDES)
    text = f"The {side} {rng.choice(IMAGE_WORDS)} shows {GROUND_WORDS[ground]}."
    return text, lambda a, b: (a if side == "left" else b).ground == ground


# How often each kind is tried; some fail for lack of pairs of both truths.
KINDS: tuple[Callable[[Scene, random.Random], tuple[str, Truth]], ...] = (
    *[_in_each] * 2,
    _in_none,
    *[_in_any] * 2,
    *[_in_one_alone] * 2,
    *[_in_side] * 2,
    *[_count_in_side] * 3,
    *[_related_in_any] * 2,
    _grounds,
)

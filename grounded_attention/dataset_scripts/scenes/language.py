# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The meaning of words about scenes, and relations between the meanings of two phrases.

The meaning of a phrase is a conjunction of constraints, one for each attribute: the set of names that the phrase
allows. It depends on the words only (`meaning_of`), so the relation of two phrases is a property of their texts. Truth
is separate (`fits`): a borderline object has two names for one attribute and both are true of it. Two true phrases
("a red ball", "an orange ball") can therefore exclude each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache

from .world import COLOURS, GROUNDS, LIGHTS, SHAPES, SIZES, TEXTURES, Scene, SceneObject

SOLIDS = ("ball", "cube", "cone", "cylinder")
FIGURES = ("star", "cross", "ring", "heart")
COUNTS = (1, 2, 3, 4, 5, 6)
MANY = COUNTS[1:]

Words = dict[str, tuple[str, ...]]  # word -> names that it allows


def _words(texts: Mapping[str, str], **broad: tuple[str, ...]) -> Words:
    """The words of each name, and broad words, which allow several names."""
    return {word: (name,) for name, words in texts.items() for word in words.split()} | broad


# `meaning_of` intersects the names of the words.
NOUNS = _words(
    {
        "ball": "ball sphere circle",
        "cube": "cube box block square",
        "cone": "cone funnel triangle",
        "cylinder": "cylinder tube can rectangle",
        "star": "star",
        "cross": "cross plus",
        "ring": "ring hoop",
        "heart": "heart",
    },
    solid=SOLIDS,
    figure=FIGURES,
    object=SHAPES,
    thing=SHAPES,
    item=SHAPES,
    shape=SHAPES,
)
COLOUR_WORDS = _words(
    {
        "red": "red crimson",
        "orange": "orange amber",
        "yellow": "yellow golden",
        "green": "green emerald",
        "blue": "blue azure",
        "purple": "purple violet",
        "pink": "pink rosy",
        "gray": "gray grey",
    },
    reddish=("red", "orange", "pink"),
    bluish=("blue", "purple"),
    colorful=COLOURS[:-1],
)
SIZE_WORDS = _words({"small": "small little tiny", "medium": "medium", "large": "large big huge"})
TEXTURE_WORDS = _words(
    {"plain": "plain smooth", "striped": "striped stripes", "dotted": "dotted spotted dots spots"},
    patterned=("striped", "dotted"),
)
SHAPE_ADJECTIVES: Words = {"round": ("ball", "ring"), "pointed": ("cone", "star")}
COUNT_WORDS: dict[str, tuple[int, ...]] = {
    "one": (1,),
    "two": (2,),
    "pair": (2,),
    "couple": (2,),
    "both": (2,),
    "three": (3,),
    "several": MANY,
    "some": MANY,
    "group": MANY,
}
GROUND_WORDS = _words(
    {
        "wood": "wooden table",
        "stone": "stony pavement",
        "grass": "grassy grass lawn",
        "sand": "sandy sand beach",
    },
    floor=("wood", "stone"),
    field=("grass", "sand"),
    ground=GROUNDS,
    surface=GROUNDS,
    background=GROUNDS,
)
LIGHT_WORDS = _words({"left": "left", "right": "right"}, light=LIGHTS, sunlight=LIGHTS, sunshine=LIGHTS)
# Words in phrases without a constraint.
FUNCTION_WORDS = ("a", "an", "the", "of", "with", "from")

PLURALS = {noun: noun + ("es" if noun[-1] in "sx" else "s") for noun in NOUNS}
_TABLES: tuple[tuple[str, dict[str, tuple]], ...] = (
    ("shapes", NOUNS),
    ("shapes", {PLURALS[noun]: allowed for noun, allowed in NOUNS.items()}),
    ("shapes", SHAPE_ADJECTIVES),
    ("colours", COLOUR_WORDS),
    ("sizes", SIZE_WORDS),
    ("textures", TEXTURE_WORDS),
    ("counts", COUNT_WORDS),
    ("grounds", GROUND_WORDS),
    ("lights", LIGHT_WORDS),
)
LEXICON: dict[str, tuple[str, frozenset]] = {
    word: (attribute, frozenset(allowed)) for attribute, table in _TABLES for word, allowed in table.items()
}

ALTERNATION, FORWARD_ENTAILMENT, REVERSE_ENTAILMENT, EQUIVALENCE, INDEPENDENCE = range(5)


@dataclass(frozen=True)
class Meaning:
    """The names that a phrase allows for each attribute; all names if the phrase does not constrain it.

    `kind` is the subject of the phrase: "object", "ground" or "light". `counts` are the allowed numbers of objects.
    """

    kind: str
    shapes: frozenset = frozenset(SHAPES)
    colours: frozenset = frozenset(COLOURS)
    sizes: frozenset = frozenset(SIZES)
    textures: frozenset = frozenset(TEXTURES)
    counts: frozenset = frozenset(COUNTS)
    grounds: frozenset = frozenset(GROUNDS)
    lights: frozenset = frozenset(LIGHTS)


ATTRIBUTES = tuple(field.name for field in fields(Meaning) if field.name != "kind")
LOOKS = ("shapes", "colours", "textures", "sizes")  # of an object


@lru_cache(maxsize=100_000)
def meaning_of(text: str) -> Meaning:
    """Returns the meaning of a phrase."""
    allowed: dict[str, frozenset] = {}
    plural = False
    for word in text.lower().split():
        if word in LEXICON:
            attribute, values = LEXICON[word]
            allowed[attribute] = allowed.get(attribute, values) & values
            plural |= word in _PLURAL_NOUNS
        elif word not in FUNCTION_WORDS:
            raise ValueError(f"{word!r} in {text!r} is not in the vocabulary of the scenes' phrases")
    if "grounds" in allowed:
        return Meaning("ground", grounds=allowed["grounds"])
    if "lights" in allowed:
        return Meaning("light", lights=allowed["lights"])
    allowed.setdefault("counts", frozenset(MANY if plural else (1,)))
    return Meaning("object", **allowed)


_PLURAL_NOUNS = frozenset(PLURALS.values())


def relation_between(first: Meaning, second: Meaning) -> int:
    """Returns the relation of two phrases about the same thing, as a label of the VGP typology.

    Equal constraints are an equivalence (3). If the first phrase implies the second it is a forward entailment (1), in
    the other direction a reverse entailment (2). If no look satisfies both it is an alternation (0), otherwise
    independence (4).
    """
    if first.kind != second.kind:
        raise ValueError(f"a phrase about {first.kind} and one about {second.kind} cannot be compared")
    pairs = [(getattr(first, name), getattr(second, name)) for name in ATTRIBUTES]
    if any(a.isdisjoint(b) for a, b in pairs):
        return ALTERNATION
    if first == second:
        return EQUIVALENCE
    if all(a <= b for a, b in pairs):
        return FORWARD_ENTAILMENT
    if all(a >= b for a, b in pairs):
        return REVERSE_ENTAILMENT
    return INDEPENDENCE


def fits(item: SceneObject, meaning: Meaning) -> bool:
    """Returns whether a single object satisfies the constraints; for a borderline look, either name is enough."""
    return not any(getattr(meaning, name).isdisjoint(getattr(item, name)) for name in LOOKS)


def is_certain(item: SceneObject, meaning: Meaning) -> bool:
    """Returns whether a single object satisfies the constraints under every name of its looks."""
    return all(getattr(meaning, name).issuperset(getattr(item, name)) for name in LOOKS)


def exists(phrase: str, scene: Scene) -> bool | None:
    """Returns whether a scene has an object that a phrase is true of; None if only a borderline look fits."""
    meaning = meaning_of(phrase)
    if any(is_certain(item, meaning) for item in scene.objects):
        return True
    if any(fits(item, meaning) for item in scene.objects):
        return None
    return False


def with_article(noun: str) -> str:
    """The noun after "a" or "an"."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def referents(scene: Scene, meaning: Meaning) -> list[frozenset[int]]:
    """Returns the possible referents of a phrase, read alone."""
    if meaning.kind != "object":
        holds = scene.ground in meaning.grounds and scene.light in meaning.lights
        return [frozenset()] if holds else []
    fitting = [number for number, item in enumerate(scene.objects) if fits(item, meaning)]
    if meaning.counts == {1}:
        return [frozenset((number,)) for number in fitting]
    if len(fitting) in meaning.counts:
        return [frozenset(fitting)]
    return []


def chance(meaning: Meaning) -> float:
    """Estimates the probability that the phrase is true of something in a random scene."""
    if meaning.kind != "object":
        return len(meaning.grounds) / len(GROUNDS) * len(meaning.lights) / len(LIGHTS)
    shapes = min(1.0, 1.1 * len(meaning.shapes) / len(SHAPES))
    colours = min(1.0, 1.25 * len(meaning.colours) / len(COLOURS))
    sizes = min(1.0, 1.1 * len(meaning.sizes) / len(SIZES))
    share = shapes * colours * sizes * len(meaning.textures) / len(TEXTURES)
    # A scene has about 4.7 objects, often similar; several of a kind are rarer than one.
    return min(1.0, 4.7 * share) * (1.0 if meaning.counts == {1} else 0.3)

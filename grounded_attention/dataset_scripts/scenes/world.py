# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The content of a scene: objects, their attributes and relations, as plain data drawn from a seed.

This module does not use pixels, words or files: `painter` draws a scene, `captions` and `annotators` describe it,
`detector` simulates its detection and `writers` stores it, so a further writer needs no change here.
Positions are pixels with the origin at the top left. An attribute is a tuple of the names that fit its look: one name,
or two for a borderline look, for example `("red", "orange")` for a colour between the two.
"""

import random
from dataclasses import dataclass
from enum import Enum

SHAPES = ("ball", "cube", "cone", "cylinder", "star", "cross", "ring", "heart")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "gray")
SIZES = ("small", "medium", "large")
TEXTURES = ("plain", "striped", "dotted")
GROUNDS = ("wood", "stone", "grass", "sand")
LIGHTS = ("left", "right")
RELATIONS = ("left_of", "right_of", "above", "below", "next_to")

# Looks between two names; two annotators may then name the same object differently.
BETWEEN_SHAPES = (("cone", "cylinder"), ("star", "cross"))
BETWEEN_COLOURS = (
    ("red", "orange"),
    ("orange", "yellow"),
    ("yellow", "green"),
    ("green", "blue"),
    ("blue", "purple"),
    ("purple", "pink"),
    ("pink", "red"),
)
BETWEEN_SIZES = (("small", "medium"), ("medium", "large"))

# The combinations that can be held out: a colour for each shape, and for each relation a shape of its landmark, the
# second thing ("star" in "above the star"). Each name remains in seven others.
HELD_OUT_COLOURS = {
    "ball": "red",
    "cube": "orange",
    "cone": "yellow",
    "cylinder": "green",
    "star": "blue",
    "cross": "purple",
    "ring": "pink",
    "heart": "gray",
}
HELD_OUT_LANDMARKS = {"left_of": "ring", "right_of": "cube", "above": "star", "below": "cylinder", "next_to": "heart"}

# Half of the extent in pixels; a borderline size is the mean of its two names.
RADII = {"small": 10.5, "medium": 16.5, "large": 24.5}

BORDERLINE_RATE = 0.6
LOOKALIKE_RATE = 0.65
# Of the pairs of colour and shape in a scene with `Combinations.HELD_OUT`; about as many remain ordinary.
HELD_OUT_RATE = 0.5

Look = dict[str, tuple[str, ...]]


class Combinations(Enum):
    """The combinations that an image and its texts may have.

    `ALL`: any. `SEEN`: no object has, and no text names, a combination that is held out. `HELD_OUT`: about half of the
    pairs of colour and shape are held out, and each text names a combination that is.
    """

    ALL = "all"
    SEEN = "seen"
    HELD_OUT = "held out"


@dataclass(frozen=True)
class SceneObject:
    """One object: the names that fit each attribute, and its position (centre, half extent, tilt in degrees)."""

    shapes: tuple[str, ...]
    colours: tuple[str, ...]
    sizes: tuple[str, ...]
    textures: tuple[str, ...]
    x: float
    y: float
    radius: float
    tilt: float


@dataclass(frozen=True)
class Scene:
    """An image before it is drawn: size in pixels, ground, side of the light, objects from back to front, seed."""

    width: int
    height: int
    ground: str
    light: str
    objects: tuple[SceneObject, ...]
    noise_seed: int


def relation_holds(scene: Scene, relation: str, first: int, second: int) -> bool:
    """Returns whether a relation holds between two objects.

    Left, right, above and below compare the centres along the axis with the larger distance, so exactly one of the
    four holds for two distant objects. `next_to` requires a gap below a tenth of the image's width.
    """
    a = scene.objects[first]
    b = scene.objects[second]
    dx = b.x - a.x
    dy = b.y - a.y
    if relation == "next_to":
        return (dx * dx + dy * dy) ** 0.5 - a.radius - b.radius < 0.1 * scene.width
    along, across = {"left_of": (dx, dy), "right_of": (-dx, dy), "above": (dy, dx), "below": (-dy, dx)}[relation]
    return along > 0.05 * scene.height and along >= abs(across)


def draw_scene(rng: random.Random, combinations: Combinations = Combinations.ALL) -> Scene:
    """Draws a random scene of three to six objects, several of them similar; an object without space is omitted."""
    width = rng.randint(184, 216)
    height = rng.randint(138, 162)
    looks: list[Look] = []
    for _ in range(rng.choices((3, 4, 5, 6), (1, 3, 4, 3))[0]):
        if looks and rng.random() < LOOKALIKE_RATE:
            looks.append(_alike(rng, rng.choice(looks)))
        else:
            looks.append(_look(rng))
    looks = _recombined(rng, looks, combinations)
    ground = rng.choice(GROUNDS)
    light = rng.choice(LIGHTS)
    looks = [_borderline(rng, look, combinations) for look in looks]
    objects = _place(rng, looks, width, height)
    return Scene(width, height, ground, light, objects, rng.getrandbits(32))


def holds_out(item: SceneObject) -> bool:
    """Returns whether a colour and a shape of an object, under any of their names, are a pair that can be held out."""
    return _has_held_out({"shapes": item.shapes, "colours": item.colours})


def _recombined(rng: random.Random, looks: list[Look], combinations: Combinations) -> list[Look]:
    """Returns looks with other colours or shapes where `combinations` requires it; equal pairs remain equal."""
    if combinations is Combinations.ALL:
        return looks
    new: dict[tuple[str, str], tuple[str, str]] = {}
    recombined = []
    for look in looks:
        pair = (look["colours"][0], look["shapes"][0])
        if pair not in new:
            new[pair] = _other_pair(rng, *pair, combinations)
        colour, shape = new[pair]
        recombined.append({**look, "colours": (colour,), "shapes": (shape,)})
    return recombined


def _other_pair(rng: random.Random, colour: str, shape: str, combinations: Combinations) -> tuple[str, str]:
    """Returns a pair that suits `combinations`: the same one, or one with another colour or, as often, shape."""
    is_held_out = HELD_OUT_COLOURS[shape] == colour
    changes_colour = rng.random() < 0.5
    if combinations is Combinations.SEEN and is_held_out:
        if changes_colour:
            return rng.choice([other for other in COLOURS if other != colour]), shape
        return colour, rng.choice([other for other in SHAPES if other != shape])
    if combinations is Combinations.HELD_OUT and not is_held_out and rng.random() < HELD_OUT_RATE:
        [suitable] = (other for other in SHAPES if HELD_OUT_COLOURS[other] == colour)
        if changes_colour:
            return (HELD_OUT_COLOURS[shape], shape)
        return (colour, suitable)
    return colour, shape


def _look(rng: random.Random) -> Look:
    return {
        "shapes": (rng.choice(SHAPES),),
        "colours": (rng.choice(COLOURS),),
        "sizes": (rng.choice(SIZES),),
        "textures": (rng.choice(TEXTURES),),
    }


def _alike(rng: random.Random, look: Look) -> Look:
    """Returns the same look with none, one or two attributes drawn again."""
    fresh = _look(rng)
    changed = rng.sample(("colours", "sizes", "textures", "shapes"), rng.choices((0, 1, 2), (2, 4, 3))[0])
    return {name: fresh[name] if name in changed else value for name, value in look.items()}


def _borderline(rng: random.Random, look: Look, combinations: Combinations) -> Look:
    """Returns the same look, or one whose colour, size or shape is between its name and a neighbouring one."""
    if rng.random() >= BORDERLINE_RATE:
        return look
    name, pairs = rng.choice(
        (
            ("colours", BETWEEN_COLOURS),
            ("colours", BETWEEN_COLOURS),
            ("sizes", BETWEEN_SIZES),
            ("shapes", BETWEEN_SHAPES),
        )
    )
    fitting = [pair for pair in pairs if look[name][0] in pair]
    if combinations is Combinations.SEEN:
        fitting = [pair for pair in fitting if not _has_held_out({**look, name: pair})]
    if fitting:
        return {**look, name: rng.choice(fitting)}
    return look


def _has_held_out(look: Look) -> bool:
    return any(HELD_OUT_COLOURS[shape] in look["colours"] for shape in look["shapes"])


def _place(rng: random.Random, looks: list[Look], width: int, height: int) -> tuple[SceneObject, ...]:
    """Places objects at random with little overlap; an object without space is omitted."""
    placed: list[SceneObject] = []
    for look in looks:
        radii = [RADII[size] for size in look["sizes"]]
        radius = sum(radii) / len(radii) * rng.uniform(0.95, 1.05)
        for _ in range(40):
            x = rng.uniform(radius + 2, width - radius - 2)
            y = rng.uniform(radius + 2, height - radius - 2)
            if all(max(abs(x - o.x), abs(y - o.y)) > 0.85 * (radius + o.radius) for o in placed):
                placed.append(SceneObject(x=x, y=y, radius=radius, tilt=rng.uniform(-12, 12), **look))
                break
    return tuple(placed)

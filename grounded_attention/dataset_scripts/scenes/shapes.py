# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The scenes' objects: every shape is a few filled polygons, which also determine its box; and their pictures."""

import math
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw

from grounded_attention.utils.named_types import Corners

from .world import Scene, SceneObject

Point = tuple[float, float]
# Corners in units of the object's half extent (y points down) and the face's lightness; 0 cuts a hole.
Face = tuple[tuple[Point, ...], float]


def faces(item: SceneObject) -> list[Face]:
    """Returns the faces of an object in image pixels, from back to front."""
    cosine = math.cos(math.radians(item.tilt))
    sine = math.sin(math.radians(item.tilt))
    drawn = []
    for corners, lightness in unit_faces(item.shapes):
        turned = []
        for x, y in corners:
            right = cosine * x - sine * y
            down = sine * x + cosine * y
            turned.append((item.x + item.radius * right, item.y + item.radius * down))
        drawn.append((tuple(turned), lightness))
    return drawn


@lru_cache(maxsize=1000)
def box(item: SceneObject) -> Corners:
    """Returns the tight box (x1, y1, x2, y2) of an object in image pixels."""
    points: list[tuple[float, float]] = []
    for corners, _ in faces(item):
        points.extend(corners)
    xs, ys = zip(*points, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def unit_faces(shapes: tuple[str, ...]) -> tuple[Face, ...]:
    """Returns the faces of a shape, or of the shape between two, in units of its half extent."""
    return tuple(_SHAPES[shapes])


def _ellipse(x: float, y: float, rx: float, ry: float, steps: int = 40) -> tuple[Point, ...]:
    turns = [2 * math.pi * step / steps for step in range(steps)]
    return tuple((x + rx * math.cos(turn), y + ry * math.sin(turn)) for turn in turns)


def _spikes(count: int, inner: float) -> tuple[Point, ...]:
    points: list[tuple[float, float]] = []
    for k in range(2 * count):
        radius = 1.0 if k % 2 == 0 else inner
        turn = math.pi * k / count - math.pi / 2
        points.append((radius * math.cos(turn), radius * math.sin(turn)))
    return tuple(points)


def _frustum(top: float, bottom: float) -> list[Face]:
    """Returns a round solid that narrows from `bottom` to `top`: a cone, a cylinder or a shape between them."""
    sides: tuple[Point, ...] = ((-top, -0.8), (top, -0.8), (bottom, 0.76), (-bottom, 0.76))
    shade: tuple[Point, ...] = ((top * 0.3, -0.8), (top, -0.8), (bottom, 0.76), (bottom * 0.3, 0.95))
    return [(_ellipse(0, 0.76, bottom, 0.24), 1.0), (sides, 1.0), (shade, 0.8), (_ellipse(0, -0.8, top, 0.2), 1.3)]


def _heart() -> list[Face]:
    outline = []
    for step in range(48):
        t = 2 * math.pi * step / 48
        y = (13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 17
        outline.append((math.sin(t) ** 3, -y + 0.1))
    return [(tuple(outline), 1.0)]


_CROSS = (
    *((0.33, -1), (0.33, -0.33), (1, -0.33), (1, 0.33), (0.33, 0.33), (0.33, 1)),
    *((-0.33, 1), (-0.33, 0.33), (-1, 0.33), (-1, -0.33), (-0.33, -0.33), (-0.33, -1)),
)
_SHAPES: dict[tuple[str, ...], list[Face]] = {
    ("ball",): [
        (_ellipse(0, 0, 1, 1), 0.92),
        (_ellipse(-0.08, -0.08, 0.84, 0.84), 1.0),
        (_ellipse(-0.35, -0.38, 0.26, 0.22), 1.4),
    ],
    ("cube",): [
        (((-1, -0.5), (0.5, -0.5), (0.5, 1), (-1, 1)), 1.0),
        (((-1, -0.5), (-0.5, -1), (1, -1), (0.5, -0.5)), 1.3),
        (((0.5, -0.5), (1, -1), (1, 0.5), (0.5, 1)), 0.7),
    ],
    ("cone",): _frustum(0.03, 0.9),
    ("cylinder",): _frustum(0.7, 0.7),
    ("cone", "cylinder"): _frustum(0.36, 0.8),
    ("star",): [(_spikes(5, 0.42), 1.0)],
    ("cross",): [(_CROSS, 1.0)],
    ("star", "cross"): [(_spikes(4, 0.42), 1.0)],
    ("ring",): [(_ellipse(0, 0, 1, 1), 1.0), (_ellipse(0, 0, 0.52, 0.52), 0.0)],
    ("heart",): _heart(),
}


PAINTS = {
    "red": (205, 38, 38),
    "orange": (242, 132, 22),
    "yellow": (242, 222, 52),
    "green": (48, 156, 64),
    "blue": (38, 88, 210),
    "purple": (128, 52, 168),
    "pink": (246, 140, 190),
    "gray": (122, 122, 128),
}
SURFACES = {"wood": (152, 118, 86), "stone": (204, 204, 200), "grass": (150, 178, 132), "sand": (224, 208, 170)}
OVERSAMPLING = 4
# Value of a pixel -> its value under a stripe or dot; once for each channel.
DARKER = [int(value * 0.42) for value in range(256)] * 3


def paint(scene: Scene) -> Image.Image:
    """Draws a scene; equal scenes give equal pixels."""
    rng = np.random.default_rng(scene.noise_seed)
    image = Image.fromarray(_surface(scene, rng))
    for item in scene.objects:
        _paint_object(image, item, rng)
    return image


def _surface(scene: Scene, rng: np.random.Generator) -> np.ndarray:
    """Draws the ground: its colour, brighter near the light, with coarse blotches, fine grain, and boards on wood."""
    across = np.linspace(1.12, 0.86, scene.width, dtype=np.float32)
    if scene.light != "left":
        across = across[::-1]
    down = np.linspace(0.95, 1.05, scene.height, dtype=np.float32)
    shade = across[None, :] * down[:, None]
    coarse = Image.fromarray(rng.integers(96, 160, (5, 6), dtype=np.uint8))
    blotches = coarse.resize((scene.width, scene.height), Image.Resampling.BICUBIC)
    shade *= 0.88 + np.asarray(blotches, dtype=np.float32) / np.float32(1066)
    if scene.ground == "wood":
        shade[int(rng.integers(8, 24)) :: 24] *= 0.82
    grain = rng.integers(-7, 8, (scene.height, scene.width, 1))
    colour = np.array(SURFACES[scene.ground])
    return np.clip(colour * shade[..., None] + grain, 0, 255).astype(np.uint8)


def _paint_object(image: Image.Image, item: SceneObject, rng: np.random.Generator) -> None:
    """Draws one object: its faces at four times the resolution, then its texture, then reduced with smoothing."""
    x1, y1, x2, y2 = box(item)
    left = int(x1) - 1
    top = int(y1) - 1
    size = ((int(x2) + 2 - left) * OVERSAMPLING, (int(y2) + 2 - top) * OVERSAMPLING)
    mixed: np.ndarray = np.mean([PAINTS[name] for name in item.colours], axis=0)
    colour = mixed * rng.uniform(0.93, 1.07) + rng.uniform(-8, 8, 3)
    patch = Image.new("RGB", size, _tone(colour, 0.4))
    mask = Image.new("L", size, 0)
    pen = ImageDraw.Draw(patch)
    mask_pen = ImageDraw.Draw(mask)
    for corners, lightness in faces(item):
        polygon = [((x - left) * OVERSAMPLING, (y - top) * OVERSAMPLING) for x, y in corners]
        mask_pen.polygon(polygon, fill=255 if lightness else 0)
        if lightness:
            pen.polygon(polygon, fill=_tone(colour, lightness), outline=_tone(colour, 0.4), width=2)
    patch = Image.composite(_textured(patch, item, rng), patch, mask)
    image.paste(patch.reduce(OVERSAMPLING), (left, top), mask.reduce(OVERSAMPLING))


def _tone(colour: np.ndarray, lightness: float) -> tuple[int, int, int]:
    """Returns the colour, darker (lightness below 1) or mixed with white (above 1)."""
    if lightness <= 1:
        shaded = colour * lightness
    else:
        shaded = colour + (255 - colour) * (lightness - 1)
    red, green, blue = (int(value) for value in np.clip(shaded, 0, 255))
    return red, green, blue


def _textured(patch: Image.Image, item: SceneObject, rng: np.random.Generator) -> Image.Image:
    """Covers the patch with dark stripes or dots; the caller keeps only the part on the object."""
    if item.textures == ("plain",):
        return patch
    overlay = Image.new("L", patch.size, 0)
    pen = ImageDraw.Draw(overlay)
    step = 0.46 * item.radius * OVERSAMPLING
    shift = float(rng.uniform(0, 1))
    width, height = patch.size
    if item.textures == ("striped",):
        slant = float(rng.choice((-1.0, 0.0, 1.0)))
        for k in range(-int(height / step) - 2, int(width / step) + int(height / step) + 2):
            start = (k + shift) * step * (1.0 if slant == 0 else 1.3)
            pen.line([(start, 0), (start + slant * height, height)], fill=255, width=max(2, int(step * 0.42)))
    else:
        radius = step * 0.27
        for row in range(int(height / step) + 2):
            for column in range(int(width / step) + 2):
                x = (column + shift - 0.5 * (row % 2)) * step
                y = (row + shift - 0.5) * step
                pen.ellipse([x - radius, y - radius, x + radius, y + radius], fill=255)
    return Image.composite(patch.point(DARKER), patch, overlay)

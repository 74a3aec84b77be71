# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Draws the pixels of a scene from its description."""

import numpy as np
from PIL import Image, ImageDraw

from . import shapes
from .world import Scene, SceneObject

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
    shade = (across if scene.light == "left" else across[::-1])[None, :] * np.ones((scene.height, 1), np.float32)
    shade = shade * np.linspace(0.95, 1.05, scene.height, dtype=np.float32)[:, None]
    blotches = Image.fromarray(rng.integers(96, 160, (5, 6), dtype=np.uint8)).resize(
        (scene.width, scene.height), Image.Resampling.BICUBIC
    )
    shade *= 0.88 + np.asarray(blotches, dtype=np.float32) / np.float32(1066)
    if scene.ground == "wood":
        shade[int(rng.integers(8, 24)) :: 24] *= 0.82
    grain = rng.integers(-7, 8, (scene.height, scene.width, 1))
    colour = np.array(SURFACES[scene.ground])
    return np.clip(colour * shade[..., None] + grain, 0, 255).astype(np.uint8)


def _paint_object(image: Image.Image, item: SceneObject, rng: np.random.Generator) -> None:
    """Draws one object: its faces at four times the resolution, then its texture, then reduced with smoothing."""
    x1, y1, x2, y2 = shapes.box(item)
    left, top = int(x1) - 1, int(y1) - 1
    size = ((int(x2) + 2 - left) * OVERSAMPLING, (int(y2) + 2 - top) * OVERSAMPLING)
    mixed: np.ndarray = np.mean([PAINTS[name] for name in item.colours], axis=0)
    colour = mixed * rng.uniform(0.93, 1.07) + rng.uniform(-8, 8, 3)
    patch, mask = Image.new("RGB", size, _tone(colour, 0.4)), Image.new("L", size, 0)
    pen, mask_pen = ImageDraw.Draw(patch), ImageDraw.Draw(mask)
    for corners, lightness in shapes.faces(item):
        polygon = [((x - left) * OVERSAMPLING, (y - top) * OVERSAMPLING) for x, y in corners]
        mask_pen.polygon(polygon, fill=255 if lightness else 0)
        if lightness:
            pen.polygon(polygon, fill=_tone(colour, lightness), outline=_tone(colour, 0.4), width=2)
    patch = Image.composite(_textured(patch, item, rng), patch, mask)
    image.paste(patch.reduce(OVERSAMPLING), (left, top), mask.reduce(OVERSAMPLING))


def _tone(colour: np.ndarray, lightness: float) -> tuple[int, int, int]:
    """Returns the colour, darker (lightness below 1) or mixed with white (above 1)."""
    shaded = colour * lightness if lightness <= 1 else colour + (255 - colour) * (lightness - 1)
    red, green, blue = (int(value) for value in np.clip(shaded, 0, 255))
    return red, green, blue


def _textured(patch: Image.Image, item: SceneObject, rng: np.random.Generator) -> Image.Image:
    """Covers the patch with dark stripes or dots; the caller keeps only the part on the object."""
    if item.textures == ("plain",):
        return patch
    overlay = Image.new("L", patch.size, 0)
    pen = ImageDraw.Draw(overlay)
    step, shift = 0.46 * item.radius * OVERSAMPLING, float(rng.uniform(0, 1))
    if item.textures == ("striped",):
        _stripes(pen, patch.size, step, shift, slant=float(rng.choice((-1.0, 0.0, 1.0))))
    else:
        _dots(pen, patch.size, step, shift)
    return Image.composite(patch.point(DARKER), patch, overlay)


def _stripes(pen: ImageDraw.ImageDraw, size: tuple[int, int], step: float, shift: float, slant: float) -> None:
    width, height = size
    for k in range(-int(height / step) - 2, int(width / step) + int(height / step) + 2):
        start = (k + shift) * step * (1.0 if slant == 0 else 1.3)
        pen.line([(start, 0), (start + slant * height, height)], fill=255, width=max(2, int(step * 0.42)))


def _dots(pen: ImageDraw.ImageDraw, size: tuple[int, int], step: float, shift: float) -> None:
    width, height = size
    radius = step * 0.27
    for row in range(int(height / step) + 2):
        for column in range(int(width / step) + 2):
            x, y = (column + shift - 0.5 * (row % 2)) * step, (row + shift - 0.5) * step
            pen.ellipse([x - radius, y - radius, x + radius, y + radius], fill=255)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Finds the objects of a picture of coloured shapes from its pixels alone, for pictures without a description.

The simulated detector (`detector`) reads the description of a scene, which a user's picture does not have. Here the
ground is a smooth surface fitted to the picture, and parts that differ from it are objects. Touching objects of
different colours are separated.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from .painter import PAINTS

# Longest sides of drawn scenes, in pixels; features depend on how many pixels a box has.
SHORTEST_SIDE, LONGEST_SIDE = 184, 216
# Smallest distance of an object's pixel from the ground; black and white have distance 441.
CONTRAST = 34.0
MIN_PIXELS = 60  # smallest number of pixels of an object
MIN_PATCH_SHARE = 0.2  # smallest share of a connected part for a patch of one colour to be an object
FIT_STEPS = 4


@dataclass(frozen=True)
class FoundShapes:
    """The objects of a picture."""

    boxes: np.ndarray
    colours: list[str]


def scene_size(width: int, height: int) -> tuple[int, int]:
    """Returns the size of a picture among the scenes: unchanged, or scaled to a longest side as theirs."""
    longest = max(width, height)
    target = min(max(longest, SHORTEST_SIDE), LONGEST_SIDE)
    if target == longest:
        return width, height
    target = (SHORTEST_SIDE + LONGEST_SIDE) // 2
    return max(8, round(width * target / longest)), max(8, round(height * target / longest))


def find_shapes(image: Image.Image) -> FoundShapes:
    """Finds the objects of a picture, from left to right."""
    small = image.resize(scene_size(*image.size), Image.Resampling.BICUBIC)
    pixels = np.asarray(small.convert("RGB"), dtype=np.float64)
    paints = _nearest_paint(pixels)
    scale = np.tile(np.array(image.size) / np.array(small.size), 2)
    found = []
    for part in _objects(_foreground(pixels), paints):
        rows, columns = np.nonzero(part)
        corners = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) * scale
        found.append((corners, list(PAINTS)[np.bincount(paints[part]).argmax()]))
    found.sort(key=lambda one: one[0][0])
    boxes = np.array([corners for corners, _ in found], dtype=np.float32).reshape(-1, 4)
    return FoundShapes(boxes, [colour for _, colour in found])


def _foreground(pixels: np.ndarray) -> np.ndarray:
    """Returns (H, W) bool: the pixels that differ from a smooth surface, which is fitted to the other pixels."""
    height, width = pixels.shape[:2]
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    terms = np.stack([x**i * y**j for i in range(4) for j in range(4 - i)], axis=-1).reshape(height * width, -1)
    flat = pixels.reshape(-1, 3)
    distance = np.linalg.norm(flat - np.median(flat, axis=0), axis=1)
    for _ in range(FIT_STEPS):
        ground = distance < max(CONTRAST, float(np.quantile(distance, 0.4)))
        surface, *_ = np.linalg.lstsq(terms[ground], flat[ground], rcond=None)
        distance = np.linalg.norm(flat - terms @ surface, axis=1)
    return (distance > CONTRAST).reshape(height, width)


def _nearest_paint(pixels: np.ndarray) -> np.ndarray:
    """Returns (H, W) int: the paint with the nearest hue and saturation, for any lightness of the pixel."""
    colours = np.array(list(PAINTS.values()), dtype=np.float64)
    return np.linalg.norm(_chroma(pixels)[:, :, None] - _chroma(colours), axis=-1).argmin(axis=-1)


def _chroma(colours: np.ndarray) -> np.ndarray:
    """Removes the lightness of colours (..., 3)."""
    return (colours - colours.mean(axis=-1, keepdims=True)) / (colours.max(axis=-1, keepdims=True) + 20)


def _objects(foreground: np.ndarray, paints: np.ndarray) -> Iterator[np.ndarray]:
    """Yields a mask (H, W) bool for each object: a connected part, or each large patch of a multicoloured part."""
    for part in _components(foreground):
        size = max(MIN_PIXELS, MIN_PATCH_SHARE * part.sum())
        patches = [
            patch
            for paint in np.unique(paints[part])
            for patch in _components(part & (paints == paint))
            if patch.sum() >= size
        ]
        yield from patches if len(patches) > 1 else [part]


def _components(mask: np.ndarray) -> list[np.ndarray]:
    """Returns the connected parts of a mask (H, W) that are large enough, each as a mask."""
    inside = torch.from_numpy(mask)
    number = torch.arange(1, mask.size + 1, dtype=torch.float32).view(1, 1, *mask.shape) * inside
    while True:  # the highest number of a part spreads over the part
        spread = torch.nn.functional.max_pool2d(number, 3, stride=1, padding=1) * inside
        if torch.equal(spread, number):
            break
        number = spread
    found, counts = np.unique(number[0, 0].numpy(), return_counts=True)
    return [
        number[0, 0].numpy() == one for one, count in zip(found, counts, strict=True) if one and count >= MIN_PIXELS
    ]

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Finds the objects of a picture of coloured shapes from its pixels alone, for pictures that nobody described.

The simulated detector (`detector`) reads the description of a scene, which a picture of your own has not. Here the
ground is a smooth surface fitted to the picture, and what differs from it is an object. Objects that touch and differ
in colour are told apart.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from .painter import PAINTS

# Longest sides of drawn scenes, in pixels; features depend on how many pixels a box has.
SHORTEST_SIDE, LONGEST_SIDE = 184, 216
# How far from the ground a pixel of an object is at least, of 441 between black and white.
CONTRAST = 34.0
SMALLEST = 60  # pixels of an object at least
PATCH = 0.2  # part of what is connected that a patch of one colour is at least, to be an object of its own
FITS = 4


@dataclass(frozen=True)
class FoundShapes:
    """The objects of a picture: boxes (n, 4) float32, x1 y1 x2 y2 in its pixels, and the name of each one's colour."""

    boxes: np.ndarray
    colours: list[str]


def scene_size(width: int, height: int) -> tuple[int, int]:
    """The size that a picture has among the scenes: its own, or with a longest side as theirs."""
    longest = max(width, height)
    wanted = min(max(longest, SHORTEST_SIDE), LONGEST_SIDE)
    if wanted == longest:
        return width, height
    wanted = (SHORTEST_SIDE + LONGEST_SIDE) // 2
    return max(8, round(width * wanted / longest)), max(8, round(height * wanted / longest))


def find_shapes(image: Image.Image) -> FoundShapes:
    """The objects of a picture, from left to right.

    Args:
        image: RGB, of any size; a ground of one colour, lighter and darker in places, with coloured shapes on it.
    """
    small = image.resize(scene_size(*image.size), Image.Resampling.BICUBIC)
    pixels = np.asarray(small.convert("RGB"), dtype=np.float64)
    paints = _nearest_paint(pixels)
    scale = np.tile(np.array(image.size) / np.array(small.size), 2)
    found = []
    for part in _objects(_apart_from_ground(pixels), paints):
        rows, columns = np.nonzero(part)
        corners = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) * scale
        found.append((corners, list(PAINTS)[np.bincount(paints[part]).argmax()]))
    found.sort(key=lambda one: one[0][0])
    boxes = np.array([corners for corners, _ in found], dtype=np.float32).reshape(-1, 4)
    return FoundShapes(boxes, [colour for _, colour in found])


def _apart_from_ground(pixels: np.ndarray) -> np.ndarray:
    """(H, W) bool: the pixels that differ from a smooth surface, fitted to those that do not."""
    height, width = pixels.shape[:2]
    y, x = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    terms = np.stack([x**i * y**j for i in range(4) for j in range(4 - i)], axis=-1).reshape(height * width, -1)
    flat = pixels.reshape(-1, 3)
    distance = np.linalg.norm(flat - np.median(flat, axis=0), axis=1)
    for _ in range(FITS):
        ground = distance < max(CONTRAST, float(np.quantile(distance, 0.4)))
        surface, *_ = np.linalg.lstsq(terms[ground], flat[ground], rcond=None)
        distance = np.linalg.norm(flat - terms @ surface, axis=1)
    return (distance > CONTRAST).reshape(height, width)


def _nearest_paint(pixels: np.ndarray) -> np.ndarray:
    """(H, W) int: the paint whose hue and colourfulness are nearest, however light or dark the pixel is."""
    colours = np.array(list(PAINTS.values()), dtype=np.float64)
    return np.linalg.norm(_chroma(pixels)[:, :, None] - _chroma(colours), axis=-1).argmin(axis=-1)


def _chroma(colours: np.ndarray) -> np.ndarray:
    """Colours (..., 3) without their lightness."""
    return (colours - colours.mean(axis=-1, keepdims=True)) / (colours.max(axis=-1, keepdims=True) + 20)


def _objects(apart: np.ndarray, paints: np.ndarray) -> Iterator[np.ndarray]:
    """(H, W) bool, one an object: what is connected; of large patches of several colours each is an object."""
    for part in _components(apart):
        size = max(SMALLEST, PATCH * part.sum())
        patches = [
            patch
            for paint in np.unique(paints[part])
            for patch in _components(part & (paints == paint))
            if patch.sum() >= size
        ]
        yield from patches if len(patches) > 1 else [part]


def _components(mask: np.ndarray) -> list[np.ndarray]:
    """The connected parts of a mask (H, W) that are large enough, each as a mask."""
    inside = torch.from_numpy(mask)
    number = torch.arange(1, mask.size + 1, dtype=torch.float32).view(1, 1, *mask.shape) * inside
    while True:  # the highest number of a part spreads over it
        spread = torch.nn.functional.max_pool2d(number, 3, stride=1, padding=1) * inside
        if torch.equal(spread, number):
            break
        number = spread
    found, counts = np.unique(number[0, 0].numpy(), return_counts=True)
    return [number[0, 0].numpy() == one for one, count in zip(found, counts, strict=True) if one and count >= SMALLEST]

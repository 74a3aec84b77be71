# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Region features from pixels: a fixed function of the pixels in a box, for any image and any box.

The crop is sampled to a small grid and described by its colours, its edges and its extent in pixels. A fixed random
projection with a ReLU turns the description into 2,048 values with about as many zeros and as large a mean as the
features of a real detector. All steps before the last one use integers, so the result does not depend on the number of
threads or processes.
"""

from functools import lru_cache

import numpy as np
from PIL import Image

FEATURE_SIZE = 2048
GRID = 24
PROJECTION_SEED = 20260101
# Added before the ReLU, in units of the output; with it about 35 % of the values are zero.
OFFSET = 0.39
SCALE = 1 / 1150


def pixel_features(image: Image.Image, boxes: np.ndarray) -> np.ndarray:
    """Computes the features of regions of an image."""
    image = image.convert("RGB")
    projected = describe_crops(image, boxes) @ _projection()
    return np.maximum(projected * np.float32(SCALE) + np.float32(OFFSET), 0).astype(np.float16)


def describe_crops(image: Image.Image, boxes: np.ndarray) -> np.ndarray:
    """Describes the part of an RGB image in each box by integers."""
    size, filtering = (GRID, GRID), Image.Resampling.BILINEAR
    corners = [(float(x1), float(y1), float(x2), float(y2)) for x1, y1, x2, y2 in boxes]
    crops = np.stack([np.asarray(image.resize(size, filtering, box=box)) for box in corners])
    pixels = crops.astype(np.int32)
    luma = (77 * pixels[..., 0] + 150 * pixels[..., 1] + 29 * pixels[..., 2]) >> 8
    parts = (_colours(pixels), _hues(pixels), *_edges(luma), _extent(boxes))
    return np.concatenate([part.reshape(len(boxes), -1) for part in parts], axis=1).astype(np.float32)


def _cells(values: np.ndarray, count: int) -> np.ndarray:
    """Sums over a grid of count x count cells: (n, GRID, GRID, ...) to (n, count, count, ...)."""
    step = GRID // count
    return values.reshape(len(values), count, step, count, step, *values.shape[3:]).sum(axis=(2, 4))


def _colours(pixels: np.ndarray) -> np.ndarray:
    """Returns mean colours of 6 x 6 cells."""
    return _cells(pixels, 6) // 16 - 128


def _hues(pixels: np.ndarray) -> np.ndarray:
    """Returns the frequency of each of 8 x 8 opponent colours; the middle of the crop counts four times."""
    red, green, blue = pixels[..., 0], pixels[..., 1], pixels[..., 2]
    first = np.clip((red - green + 160) // 40, 0, 7)
    second = np.clip((red + green - 2 * blue + 320) // 80, 0, 7)
    weight = np.ones((GRID, GRID), dtype=np.int32)
    weight[GRID // 4 : -GRID // 4, GRID // 4 : -GRID // 4] = 4
    index = (first * 8 + second).reshape(len(pixels), -1) + 64 * np.arange(len(pixels))[:, None]
    counts = np.bincount(index.ravel(), np.tile(weight.ravel(), len(pixels)), minlength=64 * len(pixels))
    return counts.reshape(len(pixels), 64).astype(np.int64) * 1024 // int(weight.sum())


def _edges(luma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns edges by direction in 4 x 4 cells as shares of all edges, and their density in 6 x 6 cells."""
    across, down = np.zeros_like(luma), np.zeros_like(luma)
    across[:, :, 1:-1] = luma[:, :, 2:] - luma[:, :, :-2]
    down[:, 1:-1] = luma[:, 2:] - luma[:, :-2]
    strength = np.abs(across) + np.abs(down)
    # Eight sectors of half a turn, by integer comparisons; light to dark counts as dark to light.
    flip = np.where((across < 0) | ((across == 0) & (down < 0)), -1, 1)
    across, down = across * flip, down * flip
    steep, up = np.abs(down) > across, down < 0
    half = np.where(steep, 2 * across > np.abs(down), 2 * np.abs(down) > across)
    sector = steep * 4 + up * 2 + half
    by_sector = np.where(sector[..., None] == np.arange(8), strength[..., None], 0)
    total = by_sector.sum(axis=(1, 2, 3)) + 2000
    return _cells(by_sector, 4) * 6000 // total[:, None, None, None], _cells(strength, 6) // 12


def _extent(boxes: np.ndarray) -> np.ndarray:
    """Returns width and height of the crops in pixels, each as sixteen slopes that saturate one after the other."""
    sides = np.rint(boxes[:, 2:] - boxes[:, :2]).astype(np.int32)
    return np.clip((sides[..., None] - 4 * np.arange(2, 18)) * 16, -128, 128)


@lru_cache(maxsize=1)
def _projection() -> np.ndarray:
    """Returns (number of descriptors, 2048) integers -1, 0 and 1, as float32; each column sums to 0."""
    count = describe_crops(Image.new("RGB", (8, 8)), np.array([[0.0, 0.0, 8.0, 8.0]])).shape[1]
    third = count // 3
    column = np.concatenate([np.full(third, -1), np.full(third, 1), np.zeros(count - 2 * third)]).astype(np.float32)
    rng = np.random.default_rng(PROJECTION_SEED)
    return np.ascontiguousarray(rng.permuted(np.tile(column, (FEATURE_SIZE, 1)), axis=1).T)

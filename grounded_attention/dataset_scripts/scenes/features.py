# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Region features from pixels: a fixed function of the pixels in a box, for any image and any box.

The crop is sampled to a small grid and described by its colours, its edges and its extent in pixels. A fixed random
projection with a ReLU turns the description into 2,048 values with about as many zeros and as large a mean as the
features of a real detector. All steps before the last one use integers, so the result does not depend on the number of
threads or processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image

from grounded_attention.utils.boxes import box_iou

from . import shapes
from .world import COLOURS, SHAPES, Scene, SceneObject

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
    size = (GRID, GRID)
    filtering = Image.Resampling.BILINEAR
    crops = np.stack([np.asarray(image.resize(size, filtering, box=box)) for box in boxes.tolist()])
    pixels = crops.astype(np.int32)
    luma = (77 * pixels[..., 0] + 150 * pixels[..., 1] + 29 * pixels[..., 2]) >> 8
    # The frequency of each of 8 x 8 opponent colours; the middle of the crop counts four times.
    red = pixels[..., 0]
    green = pixels[..., 1]
    blue = pixels[..., 2]
    first = np.clip((red - green + 160) // 40, 0, 7)
    second = np.clip((red + green - 2 * blue + 320) // 80, 0, 7)
    weight = np.ones((GRID, GRID), dtype=np.int32)
    weight[GRID // 4 : -GRID // 4, GRID // 4 : -GRID // 4] = 4
    count = len(pixels)
    index = (first * 8 + second).reshape(count, -1) + 64 * np.arange(count)[:, None]
    weights = np.tile(weight.ravel(), count)
    counts = np.bincount(index.ravel(), weights, minlength=64 * count).reshape(count, 64)
    hues = counts.astype(np.int64) * 1024 // int(weight.sum())
    # Width and height of the crops in pixels, each as sixteen slopes that saturate one after the other.
    sides = np.rint(boxes[:, 2:] - boxes[:, :2]).astype(np.int32)
    extents = np.clip((sides[..., None] - 4 * np.arange(2, 18)) * 16, -128, 128)
    parts = (_cells(pixels, 6) // 16 - 128, hues, *_edges(luma), extents)
    return np.concatenate([part.reshape(len(boxes), -1) for part in parts], axis=1).astype(np.float32)


def _cells(values: np.ndarray, count: int) -> np.ndarray:
    """Sums over a grid of count x count cells: (n, GRID, GRID, ...) to (n, count, count, ...)."""
    step = GRID // count
    return values.reshape(len(values), count, step, count, step, *values.shape[3:]).sum(axis=(2, 4))


def _edges(luma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns edges by direction in 4 x 4 cells as shares of all edges, and their density in 6 x 6 cells."""
    across = np.zeros_like(luma)
    down = np.zeros_like(luma)
    across[:, :, 1:-1] = luma[:, :, 2:] - luma[:, :, :-2]
    down[:, 1:-1] = luma[:, 2:] - luma[:, :-2]
    strength = np.abs(across) + np.abs(down)
    # Eight sectors of half a turn, by integer comparisons; light to dark counts as dark to light.
    flip = np.where((across < 0) | ((across == 0) & (down < 0)), -1, 1)
    across = across * flip
    down = down * flip
    steep = np.abs(down) > across
    up = down < 0
    half = np.where(steep, 2 * across > np.abs(down), 2 * np.abs(down) > across)
    sector = steep * 4 + up * 2 + half
    by_sector = np.where(sector[..., None] == np.arange(8), strength[..., None], 0)
    total = by_sector.sum(axis=(1, 2, 3)) + 2000
    return _cells(by_sector, 4) * 6000 // total[:, None, None, None], _cells(strength, 6) // 12


@lru_cache(maxsize=1)
def _projection() -> np.ndarray:
    """Returns (number of descriptors, 2048) integers -1, 0 and 1, as float32; each column sums to 0."""
    whole = np.array([[0.0, 0.0, 8.0, 8.0]])
    count = describe_crops(Image.new("RGB", (8, 8)), whole).shape[1]
    third = count // 3
    column = np.zeros(count, dtype=np.float32)
    column[:third] = -1
    column[third : 2 * third] = 1
    rng = np.random.default_rng(PROJECTION_SEED)
    return np.ascontiguousarray(rng.permuted(np.tile(column, (FEATURE_SIZE, 1)), axis=1).T)


CLASSES = tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)

MISS_RATE = 0.04
DUPLICATE_RATE = 0.25
CLASS_NOISE = 0.1
MIN_REGIONS = 8
MAX_REGIONS = 14


@dataclass(frozen=True)
class Detections:
    """The regions that the detector finds in an image; n regions in random order."""

    boxes: np.ndarray
    classes: np.ndarray
    scores: np.ndarray
    class_probs: np.ndarray


def detect(scene: Scene, rng: np.random.Generator) -> Detections:
    """Detects between 8 and 14 regions of a scene."""
    detected: list[tuple[np.ndarray, SceneObject | None]] = []
    for item in scene.objects:
        if rng.random() >= MISS_RATE:
            detected.append((_jittered(scene, item, 0.6, 0.95, rng), item))
            if rng.random() < DUPLICATE_RATE:
                detected.append((_jittered(scene, item, 0.5, 0.85, rng), item))
    fewest = min(len(detected) + 3, MAX_REGIONS)
    count = max(int(rng.integers(MIN_REGIONS, MAX_REGIONS + 1)), fewest)
    detected += [_distractor(scene, rng) for _ in range(count - len(detected))]
    detected = [detected[k] for k in rng.permutation(len(detected))]
    probs = np.stack([_class_probs(item, rng) for _, item in detected]).astype(np.float16)
    return Detections(
        boxes=np.stack([box for box, _ in detected]),
        classes=probs.argmax(axis=1).astype(np.int32),
        scores=probs.max(axis=1).astype(np.float32),
        class_probs=probs,
    )


def _jittered(scene: Scene, item: SceneObject, low: float, high: float, rng: np.random.Generator) -> np.ndarray:
    """Moves the edges of an object's box until its overlap (IoU) with the true box is between `low` and `high`."""
    true = np.array(shapes.box(item), dtype=np.float32)
    extent = np.tile(true[2:] - true[:2], 2)
    # Uses the first of a few random moves that fits; one of them nearly always does.
    strengths = np.repeat(rng.permutation(np.linspace(0.02, 0.14, 6)), 4)[:, None]
    moved = _inside(scene, true + rng.normal(size=(len(strengths), 4)) * strengths * extent)
    overlap = box_iou(moved, true[None], dtype=np.float32)[:, 0]
    fitting = np.flatnonzero((overlap >= low) & (overlap <= high))
    if len(fitting):
        return moved[fitting[0]]
    return moved[np.abs(overlap - (low + high) / 2).argmin()]


def _distractor(scene: Scene, rng: np.random.Generator) -> tuple[np.ndarray, SceneObject | None]:
    """Returns a box of two objects, of part of one, or of a random place."""
    kind = rng.random()
    first, second = rng.permutation(len(scene.objects))[:2]
    boxes = np.array([shapes.box(scene.objects[k]) for k in (first, second)], dtype=np.float32)
    item: SceneObject | None = scene.objects[first]
    if kind < 0.25:
        union = np.concatenate([boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)])
        box = union + rng.normal(scale=2, size=4)
    elif kind < 0.5:
        size = boxes[0, 2:] - boxes[0, :2]
        part = size * rng.uniform(0.4, 0.6, 2)
        corner = boxes[0, :2] + (size - part) * rng.integers(0, 2, 2)
        box = np.concatenate([corner, corner + part])
    else:
        item = None
        size = rng.uniform(18, 70, 2)
        corner = rng.uniform(0, 1, 2) * (np.array([scene.width, scene.height]) - size)
        box = np.concatenate([corner, corner + size])
    return _inside(scene, box[None])[0], item


def _inside(scene: Scene, boxes: np.ndarray) -> np.ndarray:
    """Clips boxes (n, 4) to the image, at least 6 pixels wide and high, as float32."""
    limit = np.array([scene.width, scene.height])
    low = np.clip(boxes[:, :2], 0, limit - 6)
    high = np.clip(np.maximum(boxes[:, 2:], low + 6), 0, limit)
    return np.concatenate([low, high], axis=1).astype(np.float32)


def _class_probs(item: SceneObject | None, rng: np.random.Generator) -> np.ndarray:
    """Draws a distribution over `CLASSES`: peak at the object's class or a wrong one; nearly flat for background."""
    noise = rng.dirichlet(np.full(len(CLASSES), 0.3))
    if item is None:
        highest = 0.3 * rng.random()
        peak = highest * _one_hot(int(rng.integers(len(CLASSES))))
        return peak + 0.7 * noise + (0.3 - highest) / len(CLASSES)
    shape = _pick(item.shapes, rng)
    colour = _pick(item.colours, rng)
    if rng.random() < CLASS_NOISE:
        if rng.random() < 0.5:
            shape = _pick(SHAPES, rng)
        else:
            colour = _pick(COLOURS, rng)
    confidence = rng.uniform(0.45, 0.98)
    peak = _one_hot(CLASSES.index(f"{colour} {shape}"))
    similarity = np.zeros(len(CLASSES))
    for place, name in enumerate(CLASSES):
        other_colour, other_shape = name.split()
        similarity[place] = (other_colour == colour) + (other_shape == shape)
    others = 0.5 * similarity / similarity.sum() + 0.5 * noise
    return confidence * peak + (1 - confidence) * others


def _one_hot(number: int) -> np.ndarray:
    return np.eye(len(CLASSES))[number]


def _pick(names: Sequence[str], rng: np.random.Generator) -> str:
    return names[int(rng.integers(len(names)))]

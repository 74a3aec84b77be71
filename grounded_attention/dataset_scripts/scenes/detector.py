# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A simulated object detector: boxes and classes from the description of a scene, features from its pixels.

Boxes are those of the objects with jitter; some are missed, some found twice, and there are boxes of the background,
of parts and of two objects together. Classes are a colour and a shape ("red ball"), sometimes wrong. Feature values
depend only on the pixels in a box (`features`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grounded_attention.utils.boxes import box_iou

from . import shapes
from .world import COLOURS, SHAPES, Scene, SceneObject

CLASSES = tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)

MISS_RATE = 0.04
DUPLICATE_RATE = 0.25
CLASS_NOISE = 0.1
MIN_REGIONS, MAX_REGIONS = 8, 14


@dataclass(frozen=True)
class Detections:
    """The regions that the detector finds in an image; n regions in random order."""

    boxes: np.ndarray
    classes: np.ndarray
    scores: np.ndarray
    class_probs: np.ndarray


def detect(scene: Scene, rng: np.random.Generator) -> Detections:
    """Detects between 8 and 14 regions of a scene."""
    found: list[tuple[np.ndarray, SceneObject | None]] = []
    for item in scene.objects:
        if rng.random() >= MISS_RATE:
            found.append((_jittered(scene, item, 0.6, 0.95, rng), item))
            if rng.random() < DUPLICATE_RATE:
                found.append((_jittered(scene, item, 0.5, 0.85, rng), item))
    count = max(int(rng.integers(MIN_REGIONS, MAX_REGIONS + 1)), min(len(found) + 3, MAX_REGIONS))
    found += [_distractor(scene, rng) for _ in range(count - len(found))]
    found = [found[k] for k in rng.permutation(len(found))]
    probs = np.stack([_class_probs(item, rng) for _, item in found]).astype(np.float16)
    return Detections(
        boxes=np.stack([box for box, _ in found]),
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
    return moved[fitting[0] if len(fitting) else int(np.abs(overlap - (low + high) / 2).argmin())]


def _distractor(scene: Scene, rng: np.random.Generator) -> tuple[np.ndarray, SceneObject | None]:
    """Returns a box of two objects, of part of one, or of a random place."""
    kind = rng.random()
    first, second = rng.permutation(len(scene.objects))[:2]
    boxes = np.array([shapes.box(scene.objects[k]) for k in (first, second)], dtype=np.float32)
    if kind < 0.25:
        union = np.concatenate([boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)])
        return _inside(scene, union[None] + rng.normal(scale=2, size=(1, 4)))[0], scene.objects[first]
    if kind < 0.5:
        size = boxes[0, 2:] - boxes[0, :2]
        part = size * rng.uniform(0.4, 0.6, 2)
        corner = boxes[0, :2] + (size - part) * rng.integers(0, 2, 2)
        return _inside(scene, np.concatenate([corner, corner + part])[None])[0], scene.objects[first]
    size = rng.uniform(18, 70, 2)
    corner = rng.uniform(0, 1, 2) * (np.array([scene.width, scene.height]) - size)
    return _inside(scene, np.concatenate([corner, corner + size])[None])[0], None


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
        return highest * _one_hot(int(rng.integers(len(CLASSES)))) + 0.7 * noise + (0.3 - highest) / len(CLASSES)
    shape, colour = _pick(item.shapes, rng), _pick(item.colours, rng)
    if rng.random() < CLASS_NOISE:
        shape, colour = (_pick(SHAPES, rng), colour) if rng.random() < 0.5 else (shape, _pick(COLOURS, rng))
    confidence = rng.uniform(0.45, 0.98)
    peak = _one_hot(CLASSES.index(f"{colour} {shape}"))
    similarity = np.array(
        [(name.split()[0] == colour) + (name.split()[1] == shape) for name in CLASSES], dtype=np.float64
    )
    return confidence * peak + (1 - confidence) * (0.5 * similarity / similarity.sum() + 0.5 * noise)


def _one_hot(number: int) -> np.ndarray:
    return np.eye(len(CLASSES))[number]


def _pick(names: Sequence[str], rng: np.random.Generator) -> str:
    return names[int(rng.integers(len(names)))]

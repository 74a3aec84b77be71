# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How hard drawn scenes are: classes, chance, ambiguity, false captions, linear readability of features."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np

from grounded_attention.dataset_scripts.builders.vgp_pairs import nearest_negatives
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.dataset_scripts.scenes import shapes
from grounded_attention.dataset_scripts.scenes.captions import caption_holds, needs_context
from grounded_attention.dataset_scripts.scenes.dataset import scene_record, split_numbers
from grounded_attention.dataset_scripts.scenes.world import (
    COLOURS,
    SHAPES,
    SceneObject,
)
from grounded_attention.dataset_scripts.scenes.writers import phrase_pairs
from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou

Figures = dict[str, float]
MOST_REGIONS_TO_DECODE = 6000


def scene_numbers(folder):
    """Name -> number, for a folder that `write_scenes` wrote; the scenes are made again from its seed."""
    made = json.loads((folder / "scenes.json").read_text())
    seed = made["seed"]
    images = made["images"]
    records = [scene_record(seed, number, images) for number in range(images)]
    table = RegionTable.open(folder / "regions")
    return {
        **language_figures(records),
        **label_figures(records),
        **grounding_figures(records, table),
        **negative_figures(records, table, split_numbers(seed, images)),
        **feature_figures(records, table),
    }


def language_figures(records):
    """How often a phrase is ambiguous without its sentence, and a thing is in several captions."""
    mentions = [(record.scene, mention) for record in records for mention in _mentions(record)]
    grounded = [(scene, mention) for scene, mention in mentions if mention.members]
    captions_of: dict[tuple[str, int], set[int]] = defaultdict(set)
    for record in records:
        chains = record.chains()
        for index, caption in enumerate(record.related_captions):
            for mention in caption.mentions:
                if mention.entity:
                    captions_of[record.image_id, chains[mention.entity]].add(index)
    return {
        "grounded phrases that need their sentence": _mean(needs_context(scene, m) for scene, m in grounded),
        "chains in two captions or more": _mean(len(captions) > 1 for captions in captions_of.values()),
    }


def label_figures(records):
    """Shares of the five classes of phrase pairs."""
    counts = Counter(row[5] for record in records for row in phrase_pairs(record))
    return {f"pairs: {name}": count / counts.total() for name, count in counts.items()}


def grounding_figures(records, table):
    """How often a random region is right (intersection over union of at least 0.5)."""
    chances = []
    for record in records:
        right = _object_overlaps(record.scene, table[record.image_id]) >= IOU_THRESHOLD
        for mention in _mentions(record):
            if mention.members:
                chances.append(right[:, sorted(mention.members)].any(axis=1).mean())
    return {"chance of a grounded phrase": _mean(chances)}


def negative_figures(records, table, splits):
    """How often a caption is false for the nearest image of its split."""
    nearest: dict[str, str] = {}
    for numbers in splits.values():
        nearest |= nearest_negatives([records[number].image_id for number in numbers], table)
    by_id = {record.image_id: record for record in records}
    false = _mean(
        not caption_holds(by_id[one].scene, caption)
        for one, other in nearest.items()
        for caption in by_id[other].related_captions
    )
    return {"captions false of the nearest image": false}


def feature_figures(records, table):
    """Accuracy of a ridge regression on a fifth of the regions that show an object; any name that fits is right."""
    rows: list[tuple[np.ndarray, SceneObject]] = []
    for record in records:
        regions = table[record.image_id]
        overlap = _object_overlaps(record.scene, regions)
        for region in np.flatnonzero(overlap.max(axis=1) >= IOU_THRESHOLD):
            rows.append((regions.features[region], record.scene.objects[overlap[region].argmax()]))
        if len(rows) >= MOST_REGIONS_TO_DECODE:
            break
    features = np.stack([feature for feature, _ in rows]).astype(np.float32)
    objects = [item for _, item in rows]
    names: dict[str, tuple[Callable[[SceneObject], tuple[str, ...]], tuple[str, ...]]] = {
        "colour": (lambda item: item.colours, COLOURS),
        "shape": (lambda item: item.shapes, SHAPES),
    }
    return {
        f"linear classifier: {name}": _decoded(features, [of(item) for item in objects], values)
        for name, (of, values) in names.items()
    }


def _decoded(features, fitting, names, ridge=300):
    """Share of held-out rows whose predicted name fits, for a ridge regression."""
    targets = np.array([[(name in fit) / len(fit) for name in names] for fit in fitting], dtype=np.float32)
    cut = len(features) * 4 // 5
    mean = features[:cut].mean(axis=0)
    spread = features[:cut].std(axis=0) + 1e-3
    scaled = (features - mean) / spread
    gram = scaled[:cut].T @ scaled[:cut] + ridge * np.eye(scaled.shape[1], dtype=np.float32)
    weights = np.linalg.solve(gram, scaled[:cut].T @ (targets[:cut] - targets[:cut].mean(axis=0)))
    best = (scaled[cut:] @ weights + targets[:cut].mean(axis=0)).argmax(axis=1)
    return _mean(names[column] in fit for column, fit in zip(best, fitting[cut:], strict=True))


def _object_overlaps(scene, regions):
    """Intersection over union of regions and objects: (regions, objects)."""
    size = np.array([regions.width, regions.height] * 2, dtype=np.float32)
    return box_iou(regions.boxes * size, np.array([shapes.box(item) for item in scene.objects]))


def _mentions(record):
    """The phrases of the related captions that refer to an entity."""
    return [mention for caption in record.related_captions for mention in caption.mentions if mention.entity]


def _mean(values):
    return float(np.mean(list(values)))  # type: ignore[call-overload]

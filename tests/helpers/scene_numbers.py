# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How hard drawn scenes are: classes, chance, ambiguity, false captions, linear readability of features."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from grounded_attention.dataset_scripts.builders.vgp_pairs import nearest_negatives
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable
from grounded_attention.dataset_scripts.scenes import shapes
from grounded_attention.dataset_scripts.scenes.captions import Mention, caption_holds, needs_context
from grounded_attention.dataset_scripts.scenes.dataset import scene_record, split_numbers
from grounded_attention.dataset_scripts.scenes.phrases import names_held_out
from grounded_attention.dataset_scripts.scenes.world import (
    COLOURS,
    SHAPES,
    Combinations,
    Scene,
    SceneObject,
    holds_out,
)
from grounded_attention.dataset_scripts.scenes.writers import SceneRecord, phrase_pairs
from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou

Figures = dict[str, float]
MOST_REGIONS_TO_DECODE = 6000


def scene_numbers(folder: Path) -> Figures:
    """Name -> number, for a folder that `write_scenes` wrote; the scenes are made again from its seed."""
    made = json.loads((folder / "scenes.json").read_text())
    seed, images, held_out = made["seed"], made["images"], made.get("held_out", False)
    records = [scene_record(seed, number, images, held_out) for number in range(images)]
    table = RegionTable.open(folder / "regions")
    return {
        **language_figures(records),
        **label_figures(records),
        **grounding_figures(records, table),
        **negative_figures(records, table, split_numbers(seed, images)),
        **feature_figures(records, table),
        **(held_out_figures(records) if held_out else {}),
    }


def language_figures(records: Sequence[SceneRecord]) -> Figures:
    """Counts of objects and phrases, and how often a phrase is ambiguous without its sentence."""
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
        "objects an image": _mean(len(record.scene.objects) for record in records),
        "phrases a caption": len(mentions) / sum(len(record.related_captions) for record in records),
        "phrases without boxes": 1 - len(grounded) / len(mentions),
        "grounded phrases with several boxes": _mean(len(mention.members) > 1 for _, mention in grounded),
        "grounded phrases that need their sentence": _mean(needs_context(scene, m) for scene, m in grounded),
        "chains in two captions or more": _mean(len(captions) > 1 for captions in captions_of.values()),
    }


def label_figures(records: Sequence[SceneRecord]) -> Figures:
    """Shares of the five classes of phrase pairs."""
    counts = Counter(row[5] for record in records for row in phrase_pairs(record))
    total = sum(counts.values())
    return {"pairs an image": total / len(records)} | {
        f"pairs: {name}": counts[name] / total for name in sorted(counts)
    }


def grounding_figures(records: Sequence[SceneRecord], table: RegionTable) -> Figures:
    """How often a random region is right (intersection over union of at least 0.5)."""
    chances, found = [], []
    for record in records:
        right = _object_overlaps(record.scene, table[record.image_id]) >= IOU_THRESHOLD
        for mention in _mentions(record):
            if mention.members:
                gold = right[:, sorted(mention.members)].any(axis=1)
                chances.append(gold.mean())
                found.append(gold.any())
    return {"chance of a grounded phrase": _mean(chances), "grounded phrases with a right region": _mean(found)}


def held_out_figures(records: Sequence[SceneRecord]) -> Figures:
    """Shares of objects and captions with a combination that is held out."""
    parts: dict[str, list[SceneRecord]] = {"train and val": [], "test": []}
    for record in records:
        parts["test" if record.combinations is Combinations.HELD_OUT else "train and val"].append(record)
    objects = {name: [item for record in part for item in record.scene.objects] for name, part in parts.items()}
    captions = {name: [caption for record in part for caption in record.captions] for name, part in parts.items()}
    return {
        **{f"held-out pairs: objects of {name}": _mean(map(holds_out, found)) for name, found in objects.items()},
        **{
            f"held-out combinations: captions of {name}": _mean(names_held_out(each.content) for each in found)
            for name, found in captions.items()
        },
    }


def negative_figures(records: Sequence[SceneRecord], table: RegionTable, splits: dict[str, list[int]]) -> Figures:
    """How often a caption is false for another image: the nearest of its split, and the next in order."""
    nearest: dict[str, str] = {}
    for numbers in splits.values():
        nearest |= nearest_negatives([records[number].image_id for number in numbers], table)
    by_id = {record.image_id: record for record in records}
    pairs = {
        "the nearest image": [(by_id[one], by_id[other]) for one, other in nearest.items()],
        "another image": list(zip(records, [*records[1:], records[0]], strict=True)),
    }
    return {
        f"captions false of {name}": _mean(
            not caption_holds(one.scene, caption) for one, other in chosen for caption in other.related_captions
        )
        for name, chosen in pairs.items()
    }


def feature_figures(records: Sequence[SceneRecord], table: RegionTable) -> Figures:
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


def _decoded(
    features: np.ndarray, fitting: Sequence[tuple[str, ...]], names: Sequence[str], ridge: float = 300
) -> float:
    """Share of held-out rows whose predicted name fits, for a ridge regression."""
    targets = np.array([[(name in fit) / len(fit) for name in names] for fit in fitting], dtype=np.float32)
    cut = len(features) * 4 // 5
    mean, spread = features[:cut].mean(axis=0), features[:cut].std(axis=0) + 1e-3
    scaled = (features - mean) / spread
    gram = scaled[:cut].T @ scaled[:cut] + ridge * np.eye(scaled.shape[1], dtype=np.float32)
    weights = np.linalg.solve(gram, scaled[:cut].T @ (targets[:cut] - targets[:cut].mean(axis=0)))
    best = (scaled[cut:] @ weights + targets[:cut].mean(axis=0)).argmax(axis=1)
    return _mean(names[column] in fit for column, fit in zip(best, fitting[cut:], strict=True))


def _object_overlaps(scene: Scene, regions: Regions) -> np.ndarray:
    """Intersection over union of regions and objects: (regions, objects)."""
    size = np.array([regions.width, regions.height] * 2, dtype=np.float32)
    return box_iou(regions.boxes * size, np.array([shapes.box(item) for item in scene.objects]))


def _mentions(record: SceneRecord) -> list[Mention]:
    """The phrases of the related captions that refer to an entity."""
    return [mention for caption in record.related_captions for mention in caption.mentions if mention.entity]


def _mean(values: object) -> float:
    return float(np.mean(list(values)))  # type: ignore[call-overload]

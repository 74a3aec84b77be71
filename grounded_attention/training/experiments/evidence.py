# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pictures and regions with their evidence kept, masked, or replaced by what another picture has there."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from grounded_attention.dataset_scripts.regions.table import Regions, RegionTableWriter
from grounded_attention.metrics.evidence import KEPT, MASKED, REPLACED, WHOLE
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.safe_paths import path_below

CHANGED = (KEPT, MASKED, REPLACED)
INSIDE = 0.5  # of a region's area in the evidence, from which it is evidence
Boxes = Sequence[Sequence[float]]


def changed_pictures(picture: Image.Image, boxes: Boxes, other: Image.Image) -> dict[str, Image.Image]:
    """View -> the picture; what is taken away gets the mean colour, what replaces it is of the same place."""
    pixels = np.asarray(picture.convert("RGB"))
    mean = np.broadcast_to(pixels.mean((0, 1)).round().astype(np.uint8), pixels.shape)
    there = np.asarray(other.convert("RGB").resize(picture.size))
    width, height = picture.size
    inside = np.zeros((height, width), dtype=bool)
    for x1, y1, x2, y2 in boxes:
        columns = slice(int(np.floor(x1 * width)), int(np.ceil(x2 * width)))
        inside[int(np.floor(y1 * height)) : int(np.ceil(y2 * height)), columns] = True
    side = inside[..., None]
    made = {KEPT: (side, pixels, mean), MASKED: (side, mean, pixels), REPLACED: (side, there, pixels)}
    return {view: Image.fromarray(np.where(*parts)) for view, parts in made.items()}


def changed_regions(record: Regions, boxes: Boxes, other: Regions, rng: np.random.Generator) -> dict[str, Regions]:
    """View -> the regions; features that are taken away are 0, those that replace them are of another picture's."""
    inside = np.zeros(len(record), dtype=bool)
    own = np.asarray(record.boxes, dtype=float)
    area = np.maximum((own[:, 2] - own[:, 0]) * (own[:, 3] - own[:, 1]), 1e-9)
    for box in np.asarray(boxes, dtype=float):
        low = np.maximum(own[:, :2], box[:2])
        high = np.minimum(own[:, 2:], box[2:])
        inside |= np.clip(high - low, 0, None).prod(1) / area >= INSIDE
    nothing = np.zeros_like(record.features)
    there = other.features[rng.integers(len(other), size=len(record))] if len(other) else nothing
    side = inside[:, None]
    made = {KEPT: (side, record.features, nothing), MASKED: (side, nothing, record.features)}
    made[REPLACED] = (side, there, record.features)
    return {view: replace(record, features=np.where(*parts)) for view, parts in made.items()}


def draw_others(image_ids: Sequence[str], seed: int) -> list[int]:
    """For each row the number of a row of another picture."""
    if len({*image_ids}) < 2:
        raise ValueError("evidence is replaced by that of another picture: give rows of several pictures")
    rng = np.random.default_rng(seed)
    others = []
    for image_id in image_ids:
        while image_ids[other := int(rng.integers(len(image_ids)))] == image_id:
            pass
        others.append(other)
    return others


def write_pictures(rows: Sequence[Mapping[str, Any]], folder: str, images: str, seed: int) -> list[dict[str, str]]:
    """Writes the changed pictures of rows; of each row, view -> its file."""
    others = draw_others([row["image_id"] for row in rows], seed)
    written: list[dict[str, str]] = []
    for row, other in zip(rows, others, strict=True):
        picture, donor = (open_image(path_below(images, each["file_name"])) for each in (row, rows[other]))
        files = {view: f"{folder}/{len(written)}_{view}.png" for view in CHANGED}
        for view, made in changed_pictures(picture, row["boxes"], donor).items():
            made.save(files[view])
        written.append(files)
    return written


def write_regions(rows: Sequence[Mapping[str, Any]], folder: str, table: Any, seed: int) -> None:
    """Writes a table with the regions of rows, and the changed ones: `<row number>_<view>`."""
    others = draw_others([row["image_id"] for row in rows], seed)
    rng = np.random.default_rng(seed)
    with RegionTableWriter(folder, {"source": "evidence"}) as writer:
        for number, (row, other) in enumerate(zip(rows, others, strict=True)):
            record = table[row["image_id"]]
            views = changed_regions(record, row["boxes"], table[rows[other]["image_id"]], rng)
            for view, made in {WHOLE: record, **views}.items():
                writer.write(replace(made, image_id=f"{number}_{view}", class_probs=None))

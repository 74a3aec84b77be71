# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pictures and regions with their evidence kept, masked, or replaced by what another picture has there."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from grounded_attention.dataset_scripts.regions.table import Regions, RegionTableWriter
from grounded_attention.metrics.significance import Estimate, estimate_ratio
from grounded_attention.utils.boxes import covered_shares
from grounded_attention.utils.named_types import Row
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.safe_paths import path_below

WHOLE = "whole"
CHANGED = KEPT, MASKED, REPLACED = "kept", "masked", "replaced"
VIEWS = (WHOLE, *CHANGED)


def evidence_metrics(
    right: Mapping[str, Sequence[float]],
    image_ids: Sequence[str],
    heads: npt.ArrayLike | None = None,
    chance: npt.ArrayLike | None = None,
) -> dict[str, Estimate]:
    """Scores N questions; `right`: view of `VIEWS` -> whether each answer is right, 0 or 1.

    Of attention, `heads` (N, H) is the share of the question's grounded words whose most attended region is evidence,
    NaN for a question without such words, which counts for the answers alone, and `chance` (N,) that of a random
    region, below 1. Returned are `accuracy` and that of each view, `dependence`; with attention also `attention` (of
    the head that is best on the images of the other half), `agreement` (questions in which most words look at the
    evidence where the answer depends on it, and do not where it does not), and `evidence_score`.
    """
    views = {view: np.asarray(right[view], dtype=float) for view in VIEWS}
    dependence = views[KEPT] - (views[MASKED] + views[REPLACED]) / 2
    estimates = {}
    for view, values in views.items():
        name = "accuracy" if view == WHOLE else f"accuracy, {view}"
        estimates[name] = estimate_ratio(values, None, image_ids)
    estimates["dependence"] = estimate_ratio(dependence, None, image_ids)
    if heads is None or chance is None:
        return estimates
    looked = best_head(np.asarray(heads, dtype=float), image_ids)
    lucky = np.asarray(chance, dtype=float)
    known = ~np.isnan(looked) & (lucky < 1)
    if not known.any():
        return estimates
    images = np.asarray(image_ids)[known].tolist()
    looked = looked[known]
    depends = dependence[known]
    above = (looked - lucky[known]) / (1 - lucky[known])
    estimates["attention"] = estimate_ratio(looked, None, images)
    estimates["agreement"] = estimate_ratio((looked > 0.5) == (depends > 0), None, images)
    estimates["evidence_score"] = estimate_ratio(depends * above, None, images)
    return estimates


def best_head(heads: np.ndarray, image_ids: Sequence[str]) -> np.ndarray:
    """(N,) the values (N, H) of the head that is best on the other half of the images: one that was chosen on the same
    questions would look better than it is."""
    _, image = np.unique(np.asarray(image_ids), return_inverse=True)
    sides = np.random.default_rng(0).permutation(image.max() + 1)[image] % 2
    means = []
    for side in (0, 1):
        means.append(np.nanmean(heads[sides == side], 0) if (sides == side).any() else None)
    chosen = []
    for each in means:
        chosen.append(int(np.argmax(np.nan_to_num(each))) if each is not None else 0)
    return np.where(sides == 0, heads[:, chosen[1]], heads[:, chosen[0]])


INSIDE = 0.5  # of a region's area in the evidence, from which it is evidence
Boxes = Sequence[Sequence[float]]


def _views(
    is_evidence: np.ndarray, own: np.ndarray, nothing: np.ndarray, foreign: np.ndarray
) -> dict[str, np.ndarray]:
    return {
        WHOLE: own,
        KEPT: np.where(is_evidence, own, nothing),
        MASKED: np.where(is_evidence, nothing, own),
        REPLACED: np.where(is_evidence, foreign, own),
    }


def picture_views(picture: Image.Image, boxes: Boxes, other: Image.Image) -> dict[str, Image.Image]:
    """View -> the picture; what is taken away gets the mean colour, what replaces it is of the same place."""
    pixels = np.asarray(picture.convert("RGB"))  # (H, W, 3)
    mean = pixels.mean((0, 1)).round().astype(np.uint8)
    foreign = np.asarray(other.convert("RGB").resize(picture.size))
    is_evidence = np.zeros((*pixels.shape[:2], 1), dtype=bool)
    for x1, y1, x2, y2 in np.asarray(boxes, dtype=float) * (picture.size * 2):
        is_evidence[int(np.floor(y1)) : int(np.ceil(y2)), int(np.floor(x1)) : int(np.ceil(x2))] = True
    view_pixels = _views(is_evidence, pixels, mean, foreign)
    return {view: Image.fromarray(values) for view, values in view_pixels.items()}


def region_views(record: Regions, boxes: Boxes, other: Regions, rng: np.random.Generator) -> dict[str, Regions]:
    """View -> the regions; features that are taken away are 0, those that replace them are of another picture's."""
    covered = covered_shares(record.boxes, boxes) >= INSIDE  # (R, boxes)
    is_evidence = np.any(covered, axis=1)[:, None]  # (R, 1)
    nothing = np.zeros_like(record.features)
    if len(other):
        foreign = other.features[rng.integers(len(other), size=len(record))]
    else:
        foreign = nothing
    view_features = _views(is_evidence, record.features, nothing, foreign)
    return {view: replace(record, features=features) for view, features in view_features.items()}


def draw_others(image_ids: Sequence[str], seed: int) -> list[int]:
    """For each row the number of a row of another picture."""
    if len({*image_ids}) < 2:
        raise ValueError("evidence is replaced by that of another picture: give rows of several pictures")
    rng = np.random.default_rng(seed)
    others = []
    for image_id in image_ids:
        other = int(rng.integers(len(image_ids)))
        while image_ids[other] == image_id:
            other = int(rng.integers(len(image_ids)))
        others.append(other)
    return others


def write_pictures(rows: Sequence[Row], folder: str, images: str, seed: int) -> None:
    """Writes the views of the pictures of rows: `<row number>_<view>.png`."""
    others = draw_others([row["image_id"] for row in rows], seed)
    for number, (row, other) in enumerate(zip(rows, others, strict=True)):
        picture = open_image(path_below(images, row["file_name"]))
        foreign = open_image(path_below(images, rows[other]["file_name"]))
        for view, view_picture in picture_views(picture, row["boxes"], foreign).items():
            view_picture.save(f"{folder}/{number}_{view}.png")


def write_regions(rows: Sequence[Row], folder: str, table: Any, seed: int) -> None:
    """Writes a table with the views of the regions of rows: `<row number>_<view>`."""
    others = draw_others([row["image_id"] for row in rows], seed)
    rng = np.random.default_rng(seed)
    with RegionTableWriter(folder, {"source": "evidence"}) as writer:
        for number, (row, other) in enumerate(zip(rows, others, strict=True)):
            views = region_views(table[row["image_id"]], row["boxes"], table[rows[other]["image_id"]], rng)
            for view, view_regions in views.items():
                writer.write(replace(view_regions, image_id=f"{number}_{view}", class_probs=None))

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Region features and boxes of a batch: checked, normalised and padded, with the whole image first.

Shapes: B batch, n regions given for an example, G = max n over the batch, D feature size; R columns: the whole image
(W = 1) for families that have one (else W = 0), then the kept regions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..utils.named_types import Columns
from .number_arrays import Arrays, copy_as_float32, to_array
from .region_boxes import count_boxes, stack_boxes

WHOLE_IMAGE = (0.0, 0.0, 1.0, 1.0)


@dataclass
class GivenRegions:
    """The regions of a batch as given, after all checks."""

    # B arrays (n, D), None without an image; None if the model makes features
    features: list[np.ndarray | None] | None
    boxes: np.ndarray  # (B, G, 4) float32, normalised
    counts: np.ndarray  # (B,) int64, number of regions
    has_image: np.ndarray  # (B,) bool
    images: np.ndarray  # (B, G) int64, the image of each region


@dataclass
class RegionColumns:
    """The padded region part of a batch."""

    arrays: Arrays  # the keys of the batch: `region_features` (B, R, D), `region_boxes` (B, R, 4), ...
    given_boxes: np.ndarray  # (B, G, 4) float32, the normalised boxes of all given regions, including dropped ones
    counts: np.ndarray  # (B,) int64, number of given regions
    columns: np.ndarray  # (B, G) int64, the column of each region in `arrays`, -1 for a dropped one
    images: np.ndarray  # (B, G) int64, the image of each given region
    # For regions that cover what the model sees of an image, so that a box without one is in a part that was cut:
    # marks the gold regions (n, G), by the share of them that is covered
    cover: Callable[[np.ndarray], np.ndarray] | None = None


def check_regions(inputs: Columns, has_image: np.ndarray | None, width: int, images: int) -> GivenRegions:
    """Checks the regions of a batch, with features of this width; with `has_image` (B,) the model computes them.
    `inputs` has the arguments of the processor's call, and an example has up to `images` images.
    """
    features = None
    boxes = inputs["region_boxes"]
    if has_image is None:
        features = []
        lengths = []
        for example, value in enumerate(inputs["region_features"]):
            array = None if value is None else to_array(value, f"Example {example}: region_features")
            if array is not None and (array.ndim != 2 or array.shape[1] != width):
                raise ValueError(
                    f"Example {example}: region features of shape {array.shape}, expected (regions, {width}); the "
                    "processor's region_feature_size and that of the model's config must be the width of the features."
                )
            features.append(array)
            lengths.append(0 if array is None else len(array))
        counts = np.array(lengths, dtype=np.int64)
        has_image = np.array([array is not None for array in features])
    else:
        counts = count_boxes(boxes, has_image)
    stacked = stack_boxes(boxes, counts, inputs["image_sizes"])
    of_images = _stack_image_indices(inputs["region_image_indices"], counts, images)
    return GivenRegions(features, stacked, counts, has_image, of_images)


def rank_regions(counts: np.ndarray, scores: Sequence[Any] | None) -> np.ndarray:
    """Ranks the regions of each example, by score if there are scores, else in their order."""
    ranks = np.tile(np.arange(counts.max(initial=0)), (len(counts), 1))
    for example, values in enumerate(scores or ()):
        array = to_array([] if values is None else values, f"Example {example}: region_scores")
        if array.shape != (counts[example],) or np.isnan(array).any():
            raise ValueError(
                f"Example {example}: region_scores of shape {array.shape} for {counts[example]} regions; "
                "expected one number for each region, none of them NaN."
            )
        ranks[example, np.argsort(-array, kind="stable")] = np.arange(len(array))
    return ranks


def first_ranked(ranks: np.ndarray, candidates: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Selects the regions with the lowest ranks."""
    order = np.where(candidates, ranks, ranks.shape[1]).argsort(axis=1, kind="stable")
    places = np.empty_like(ranks)
    np.put_along_axis(places, order, np.arange(ranks.shape[1])[None], axis=1)
    return candidates & (places < limit[:, None])


def limit_each_image(ranks: np.ndarray, counts: np.ndarray, images: np.ndarray, limit: int) -> np.ndarray:
    """Selects the first regions of each image."""
    exists = np.arange(ranks.shape[1]) < counts[:, None]
    limit_of_each = np.full(len(counts), limit)
    kept = np.zeros_like(exists)
    for image in range(int(images.max(initial=0)) + 1):
        kept |= first_ranked(ranks, exists & (images == image), limit_of_each)
    return kept


def arrange_regions(
    regions: GivenRegions, kept: np.ndarray, image_features: Sequence[Any] | None, feature_size: int, whole_image: bool
) -> RegionColumns:
    """Arranges the region columns of a batch: the whole image, if the family has it, then the kept regions."""
    first = int(whole_image)
    columns = np.where(kept, first - 1 + np.cumsum(kept, axis=1), -1)
    filled = np.where(regions.has_image, first + kept.sum(axis=1), 0)
    width = max(1, int(filled.max(initial=0)))
    attended = np.arange(width) < filled[:, None]
    row, region = np.nonzero(kept)
    region_boxes = np.zeros((len(columns), width, 4), dtype=np.float32)
    region_boxes[regions.has_image, :first] = WHOLE_IMAGE
    column = columns[row, region]
    region_boxes[row, column] = regions.boxes[row, region]
    images = np.zeros(attended.shape, dtype=np.int64)
    images[row, column] = regions.images[row, region]
    arrays: Arrays = {
        "region_boxes": region_boxes,
        "region_attention_mask": attended.astype(np.int64),
        "region_candidate_mask": attended & (np.arange(width) >= first),
        "region_image": images,
    }
    if regions.features is not None:
        placed = _place_features(regions.features, image_features, columns, (width, feature_size), first)
        arrays = {"region_features": placed, **arrays}
    return RegionColumns(arrays, regions.boxes, regions.counts, columns, regions.images)


def _stack_image_indices(indices: Sequence[Any] | None, counts: np.ndarray, images: int) -> np.ndarray:
    """Stacks the image index of each region."""
    out = np.zeros((len(counts), int(counts.max(initial=0))), dtype=np.int64)
    for example, value in enumerate(indices if indices is not None else ()):
        array = to_array([] if value is None else value, f"Example {example}: region_image_indices", kinds="iufb")
        if array.shape != (counts[example],) or (array.size and array.dtype.kind not in "iu"):
            raise ValueError(
                f"Example {example}: region_image_indices of shape {array.shape} and type {array.dtype} for "
                f"{counts[example]} regions; expected one integer for each region."
            )
        if ((array < 0) | (array >= images)).any():
            known = "0" if images == 1 else f"0 to {images - 1}"
            raise ValueError(
                f"Example {example}: region_image_indices {sorted(set(array.tolist()))}, but the model takes "
                f"{images} image(s) an example; expected {known}."
            )
        out[example, : len(array)] = array
    return out


def _place_features(
    features: Sequence[np.ndarray | None],
    image_features: Sequence[Any] | None,
    columns: np.ndarray,
    shape: tuple[int, int],
    first: int,
) -> np.ndarray:
    """Copies features to their columns, (B, *shape) float32; `first` is the column of the first region."""
    placed = np.zeros((len(features), *shape), dtype=np.float32)
    for example, own in enumerate(features):
        if own is None:
            continue
        kept = columns[example, : len(own)] >= 0
        count = int(kept.sum())
        rows = placed[example, first : first + count]
        copy_as_float32(rows, own if count == len(own) else own[kept])
        if not first:
            continue
        whole = None if image_features is None else image_features[example]
        if whole is not None:
            feature_size = shape[1]
            array = to_array(whole, f"Example {example}: image_features")
            if array.shape != (feature_size,):
                raise ValueError(
                    f"Example {example}: image feature of shape {array.shape}, expected ({feature_size},)."
                )
            placed[example, 0] = array
        elif len(own):
            # The mean is over all regions of the image, so it does not depend on max_regions.
            all_rows = rows if count == len(own) else own
            np.mean(all_rows, axis=0, dtype=np.float32, out=placed[example, 0])
    _check_finite(placed, first)
    return placed


def _check_finite(features: np.ndarray, first: int) -> None:
    # The sum is NaN or infinite if any value is; only then the place is searched.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(features.sum()):
            return
    bad = np.argwhere(~np.isfinite(features).all(axis=2))
    if len(bad):
        example, column = bad[-1].tolist()
        place = f"region {column - first}" if column >= first else "the whole-image feature"
        raise ValueError(
            f"Example {example}: NaN or infinity in the features of {place}; extract or import the features again."
        )

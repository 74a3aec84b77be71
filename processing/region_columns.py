# Copyright 2026 The grounded-attention authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Region features and boxes of a batch: checked, normalised, padded, the whole image in front.

Shapes: B batch, n regions given for an image, G = max n over the batch, R = 1 + kept regions, D feature size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# How far outside the image a normalised coordinate may lie (rounding in a source file) and still be clipped.
BOX_TOLERANCE = 1e-3
WHOLE_IMAGE = (0.0, 0.0, 1.0, 1.0)


@dataclass
class RegionColumns:
    """The padded region part of a batch.

    `arrays` holds `region_features` (B, R, D) float32, `region_boxes` (B, R, 4) float32, `region_attention_mask`
    (B, R) int64 and `region_candidate_mask` (B, R) bool. `given_boxes` (B, G, 4) float32 are the normalised boxes of
    all regions given, also of those that `max_regions` leaves out; `counts` (B,) how many there were; `columns`
    (B, G) int64 the column that each has in `arrays`, -1 when it was left out.
    """

    arrays: dict[str, np.ndarray]
    given_boxes: np.ndarray
    counts: np.ndarray
    columns: np.ndarray


def to_array(value: Any) -> np.ndarray:
    """NumPy view of an array, a torch tensor (any device, bfloat16 too) or nested lists."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if "bfloat16" in str(value.dtype) else value
    return np.asarray(value)


def build_regions(
    features: Sequence[Any],
    boxes: Sequence[Any],
    image_sizes: Sequence[tuple[float, float]] | None,
    image_features: Sequence[Any] | None,
    scores: Sequence[Any] | None,
    max_regions: int,
    feature_size: int,
) -> RegionColumns:
    """Region columns of a batch; an example whose features are `None` has no image and gets none.

    Raises:
        ValueError: Features of another width, not as many boxes as features, NaN, a box inverted or outside the
            image, pixel boxes without `image_sizes` or the other way round. The message names example and region.
    """
    features = [None if value is None else to_array(value) for value in features]
    counts = np.array([_checked_count(i, value, feature_size) for i, value in enumerate(features)], dtype=np.int64)
    given_boxes = stack_boxes(boxes, counts, image_sizes)
    columns = _assign_columns(counts, scores, max_regions)
    has_image = np.array([value is not None for value in features])
    width = 1 + int(columns.max(initial=0))
    attended = np.arange(width) < np.where(has_image, 1 + np.minimum(counts, max_regions), 0)[:, None]
    row, region = np.nonzero(columns >= 0)
    region_boxes = np.zeros((len(counts), width, 4), dtype=np.float32)
    region_boxes[has_image, 0] = WHOLE_IMAGE
    region_boxes[row, columns[row, region]] = given_boxes[row, region]
    arrays = {
        "region_features": _place_features(features, image_features, columns, width, feature_size),
        "region_boxes": region_boxes,
        "region_attention_mask": attended.astype(np.int64),
        "region_candidate_mask": attended & (np.arange(width) > 0),
    }
    return RegionColumns(arrays, given_boxes, counts, columns)


def _checked_count(example: int, features: np.ndarray | None, feature_size: int) -> int:
    if features is None:
        return 0
    if features.ndim != 2 or features.shape[1] != feature_size:
        raise ValueError(
            f"Example {example}: region features of shape {features.shape}, expected (regions, {feature_size}); "
            "the processor's region_feature_size must be the width of the features (and the model's config agree)."
        )
    return len(features)


def _assign_columns(counts: np.ndarray, scores: Sequence[Any] | None, max_regions: int) -> np.ndarray:
    """(B, G) column of each given region: 1, 2, ... in the given order, -1 for those beyond `max_regions`."""
    given = np.arange(counts.max(initial=0)) < counts[:, None]
    columns = np.where(given & (np.cumsum(given, axis=1) <= max_regions), np.cumsum(given, axis=1), -1)
    if scores is None:
        return columns
    for example, values in enumerate(scores):
        array = np.zeros(0) if values is None else to_array(values)
        if array.shape != (counts[example],) or np.isnan(array).any():
            raise ValueError(
                f"Example {example}: region_scores of shape {array.shape} for {counts[example]} regions; "
                "expected one number a region, none of them NaN."
            )
        best = np.sort(np.argsort(-array, kind="stable")[:max_regions])
        columns[example] = -1
        columns[example, best] = np.arange(1, len(best) + 1)
    return columns


def _place_features(
    features: Sequence[np.ndarray | None],
    image_features: Sequence[Any] | None,
    columns: np.ndarray,
    width: int,
    feature_size: int,
) -> np.ndarray:
    placed = np.zeros((len(features), width, feature_size), dtype=np.float32)
    for example, given in enumerate(features):
        if given is None:
            continue
        kept = columns[example, : len(given)] >= 0
        count = int(kept.sum())
        rows = placed[example, 1 : 1 + count]
        rows[:] = given if count == len(given) else given[kept]
        whole = None if image_features is None else image_features[example]
        if whole is not None:
            placed[example, 0] = _checked_whole(example, whole, feature_size)
        elif len(given):
            # The mean is over all regions of the image, so it does not depend on max_regions.
            everything = rows if count == len(given) else given
            np.mean(everything, axis=0, dtype=np.float32, out=placed[example, 0])
    _check_finite(placed)
    return placed


def _checked_whole(example: int, feature: Any, feature_size: int) -> np.ndarray:
    array = to_array(feature)
    if array.shape != (feature_size,):
        raise ValueError(f"Example {example}: image feature of shape {array.shape}, expected ({feature_size},).")
    return array


def _check_finite(features: np.ndarray) -> None:
    # One sum over everything is NaN or infinite when anything is; only then is it worth finding out where.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(features.sum()):
            return
    bad = np.argwhere(~np.isfinite(features).all(axis=2))
    if len(bad):
        example, column = bad[-1].tolist()
        place = f"region {column - 1}" if column else "the whole-image feature"
        raise ValueError(
            f"Example {example}: NaN or infinity in the features of {place}; extract or import them again."
        )


def stack_boxes(
    boxes: Sequence[Any], counts: np.ndarray, image_sizes: Sequence[tuple[float, float]] | None
) -> np.ndarray:
    """Boxes of a batch, checked, divided by the image size when one is given, clipped, padded: (B, G, 4) float32."""
    arrays = [_checked_shape(i, value, int(counts[i])) for i, value in enumerate(boxes)]
    flat = np.concatenate(arrays) if arrays else np.zeros((0, 4), dtype=np.float32)
    example, region = np.nonzero(np.arange(counts.max(initial=0)) < counts[:, None])
    if image_sizes is not None:
        sizes = _checked_sizes(image_sizes)
        _refuse_normalised(flat, example, sizes)
        flat = flat / np.tile(sizes, 2)[example]
    problem = find_bad_box(flat, pixels_hint=image_sizes is None)
    if problem is not None:
        index, reason = problem
        raise ValueError(f"Example {example[index]}, region {region[index]}: {reason}.")
    stacked = np.zeros((len(counts), int(counts.max(initial=0)), 4), dtype=np.float32)
    stacked[example, region] = np.clip(flat, 0.0, 1.0)
    return stacked


def _checked_shape(example: int, boxes: Any, count: int) -> np.ndarray:
    array = np.zeros((0, 4), dtype=np.float32) if boxes is None else to_array(boxes)
    array = array.reshape(0, 4) if array.size == 0 else array
    if array.shape != (count, 4):
        raise ValueError(
            f"Example {example}: boxes of shape {array.shape} for {count} region features, expected ({count}, 4): "
            "one box (x1, y1, x2, y2) a region."
        )
    return array


def _checked_sizes(image_sizes: Sequence[tuple[float, float]]) -> np.ndarray:
    for example, size in enumerate(image_sizes):
        array = to_array(size)
        if array.shape != (2,) or not (np.isfinite(array) & (array > 0)).all():
            raise ValueError(f"Example {example}: image size {size!r}, expected (width, height) in pixels.")
    return np.stack([to_array(size) for size in image_sizes])


def _refuse_normalised(flat: np.ndarray, example: np.ndarray, sizes: np.ndarray) -> None:
    """Boxes already within [0, 1] would shrink to a pixel when divided again."""
    largest = np.zeros(len(sizes))
    np.maximum.at(largest, example, np.nan_to_num(flat).max(axis=1, initial=0.0))
    suspect = (np.bincount(example, minlength=len(sizes)) > 0) & (largest <= 1.0) & (sizes.min(axis=1) > 2)
    if suspect.any():
        raise ValueError(
            f"Example {int(np.argmax(suspect))}: image_sizes are given, but all its boxes lie within [0, 1]; "
            "give pixel boxes, or normalised boxes without image_sizes."
        )


def find_bad_box(boxes: np.ndarray, pixels_hint: bool) -> tuple[int, str] | None:
    """Index of the first of the normalised boxes (n, 4) that is no box, and what is wrong with it; else `None`.

    NaN, x2 < x1 or y2 < y1, or a coordinate more than `BOX_TOLERANCE` outside [0, 1]. A box without area is allowed.
    """
    finite = np.isfinite(boxes.sum(axis=1))
    inverted = np.logical_or(boxes[:, 2] < boxes[:, 0], boxes[:, 3] < boxes[:, 1])
    outside = ((boxes < -BOX_TOLERANCE) | (boxes > 1 + BOX_TOLERANCE)).any(axis=1)
    bad = ~finite | inverted | outside
    if not bad.any():
        return None
    index = int(np.argmax(bad))
    shown = f"box {np.round(boxes[index].astype(float), 4).tolist()}"
    if not finite[index]:
        return index, f"{shown} has a NaN or infinite coordinate"
    if inverted[index]:
        return index, f"{shown} is inverted, expected x1 <= x2 and y1 <= y2"
    hint = "; pixel boxes need image_sizes [(width, height), ...]" if pixels_hint else " after division by its size"
    return index, f"{shown} lies outside the image, expected coordinates in [0, 1]{hint}"


def pairwise_iou(boxes: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Intersection over union of boxes (n, 4) with their candidates (n, R, 4): (n, R), 0 where no box has an area."""
    boxes = boxes[:, None]
    overlap = np.minimum(boxes[..., 2:], candidates[..., 2:]) - np.maximum(boxes[..., :2], candidates[..., :2])
    intersection = np.clip(overlap, 0.0, None).prod(axis=-1)
    areas = [(array[..., 2:] - array[..., :2]).prod(axis=-1) for array in (boxes, candidates)]
    union = areas[0] + areas[1] - intersection
    return np.divide(intersection, union, out=np.zeros_like(union), where=union > 0)

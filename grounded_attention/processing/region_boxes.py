# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes of a batch: checks, normalisation, padding, overlap.

Shapes: B batch, n regions given for an image, G = max n over the batch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..utils.named_types import Size
from .number_arrays import to_array

# A normalised coordinate may be this far outside the image (rounding in a source file); it is clipped then.
BOX_TOLERANCE = 1e-3


def count_boxes(boxes: Sequence[Any], has_image: np.ndarray) -> np.ndarray:
    """Returns the number of boxes of each example."""
    for example, value in enumerate(boxes):
        if (value is None) == bool(has_image[example]):
            problem = "an image without region_boxes" if value is None else "region_boxes without an image"
            raise ValueError(
                f"Example {example}: {problem}; give an empty list for an image without regions, and None for both if "
                "there is no image."
            )
    counts = []
    for example, value in enumerate(boxes):
        array = to_array([] if value is None else value, f"Example {example}: region_boxes")
        counts.append(len(array) if array.ndim else 0)
    return np.array(counts, dtype=np.int64)


def stack_boxes(
    boxes: Sequence[Any], counts: np.ndarray, image_sizes: Sequence[tuple[float, float]] | None
) -> np.ndarray:
    """Checks boxes, divides them by the image size if one is given, clips and pads them."""
    arrays = [_check_shape(i, value, int(counts[i])) for i, value in enumerate(boxes)]
    flat = np.concatenate([np.zeros((0, 4), dtype=np.float32), *arrays])
    example, region = np.nonzero(np.arange(counts.max(initial=0)) < counts[:, None])
    if image_sizes is not None:
        sizes = _check_sizes(image_sizes)
        # Boxes that are already within [0, 1]; another division would shrink them to a pixel.
        largest = np.zeros(len(sizes))
        np.maximum.at(largest, example, np.nan_to_num(flat).max(axis=1, initial=0.0))
        has_boxes = counts > 0
        suspect = has_boxes & (largest <= 1 + BOX_TOLERANCE) & (sizes.min(axis=1) > 2)
        if suspect.any():
            raise ValueError(
                f"Example {int(np.argmax(suspect))}: image_sizes are given, but all its boxes are within [0, 1]; "
                "give pixel boxes, or normalised boxes without image_sizes."
            )
        flat = flat / np.tile(sizes, 2)[example]
    problem = find_bad_box(flat, pixels_hint=image_sizes is None)
    if problem is not None:
        index, reason = problem
        raise ValueError(f"Example {example[index]}, region {region[index]}: {reason}.")
    stacked = np.zeros((len(counts), int(counts.max(initial=0)), 4), dtype=np.float32)
    stacked[example, region] = np.clip(flat, 0.0, 1.0)
    return stacked


def _check_shape(example: int, boxes: Any, count: int) -> np.ndarray:
    array = to_array([] if boxes is None else boxes, f"Example {example}: region_boxes")
    if array.size == 0:
        array = array.reshape(0, 4)
    if array.shape != (count, 4):
        raise ValueError(
            f"Example {example}: boxes of shape {array.shape} for {count} regions, expected ({count}, 4): "
            "one box (x1, y1, x2, y2) for each region."
        )
    return array


def _check_sizes(image_sizes: Sequence[tuple[float, float]]) -> np.ndarray:
    sizes = []
    for example, size in enumerate(image_sizes):
        array = to_array(size, f"Example {example}: image_sizes")
        if array.shape != (2,) or not (np.isfinite(array) & (array > 0)).all():
            raise ValueError(f"Example {example}: image size {size!r}, expected (width, height) in pixels.")
        sizes.append(array)
    return np.stack(sizes)


def check_pixel_boxes(boxes: np.ndarray, size: Size, name: str = "") -> None:
    """Raises a `ValueError` for boxes (n, 4) that are not in pixels of an image of this width and height, or inverted;
    one pixel outside the image is allowed."""
    width, height = size
    limit = np.array([width, height, width, height], dtype=np.float32)
    outside = ~np.isfinite(boxes) | (boxes < -1) | (boxes > limit + 1)
    inverted = boxes[:, :2] > boxes[:, 2:]
    wrong = outside.any(1) | inverted.any(1)
    expected = f"expected x1 <= x2 <= {width} and y1 <= y2 <= {height} in pixels"
    if wrong.any():
        index = int(wrong.argmax())
        raise ValueError(f"{name}box {index}: found {boxes[index].tolist()}, {expected}")
    if len(boxes) and boxes.max() <= 1 + BOX_TOLERANCE and min(size) > 2:
        raise ValueError(f"{name}boxes up to {boxes.max():g} look divided by the size of the image: {expected}")


def find_bad_box(boxes: np.ndarray, pixels_hint: bool) -> tuple[int, str] | None:
    """Finds the first invalid box.

    Invalid are NaN and infinity, x2 < x1 or y2 < y1, and coordinates more than `BOX_TOLERANCE` outside [0, 1]. A box
    without area is valid.
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
    return index, f"{shown} is outside the image, expected coordinates in [0, 1]{hint}"


def box_iou(first: Tensor, second: Tensor) -> Tensor:
    """Computes the intersection over union (IoU) of boxes; boxes without area overlap nothing."""
    first = first[..., :, None, :]
    second = second[..., None, :, :]
    low = torch.maximum(first[..., :2], second[..., :2])
    high = torch.minimum(first[..., 2:], second[..., 2:])
    intersection = (high - low).clamp(min=0).prod(-1)
    union = _area(first) + _area(second) - intersection
    smallest = torch.finfo(union.dtype).tiny
    return torch.where(union > 0, intersection / union.clamp(min=smallest), 0.0)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Overlap and units of boxes, with the two pixel conventions of evaluations; any package may import this module.

`grounded_attention.processing.region_boxes` has the overlap of tensors.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .named_types import Size

# A region is what a gold box means if their intersection over union (IoU) is at least this.
IOU_THRESHOLD = 0.5


Boxes = npt.ArrayLike


def box_iou(
    boxes: Boxes, others: Boxes, plus_one: bool = False, dtype: type[np.floating] = np.float64
) -> npt.NDArray[np.floating]:
    """Computes the intersection over union of every box with every other box."""
    first = np.asarray(boxes, dtype=dtype).reshape(-1, 4)
    second = np.asarray(others, dtype=dtype).reshape(-1, 4)
    intersection = _intersection(first, second, plus_one)
    area = _area(first[:, 2:] - first[:, :2], plus_one)
    other_area = _area(second[:, 2:] - second[:, :2], plus_one)
    union = area[:, None] + other_area - intersection
    return np.divide(intersection, union, out=np.zeros_like(intersection), where=union > 0)


def covered_shares(boxes: Boxes, others: Boxes) -> npt.NDArray[np.float64]:
    """(n, m): the share of each of n boxes that each of m others covers; 0 of a box without an area."""
    first = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    second = np.asarray(others, dtype=np.float64).reshape(-1, 4)
    area = _area(first[:, 2:] - first[:, :2], plus_one=False)[:, None]
    return _intersection(first, second, plus_one=False) / np.maximum(area, 1e-9)


def look_normalised(boxes: Boxes, width: float, height: float) -> bool:
    """Whether boxes (n, 4) in pixels seem to be divided by the size of their image: within [0, 1], with fractions."""
    array = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    whole = (array == (0, 0, 1, 1)).all(axis=1).any()  # the whole image; a box of one pixel in the corner is rare
    inside = min(width, height) > 2 and array.max(initial=-1) <= 1 + 1e-3
    return bool(inside and (whole or (array % 1).any()))


def same_shape(size: Size, other: Size) -> bool:
    """Whether an image of this width and height may be a copy of the other, larger or smaller, but not turned."""
    width, height = size
    other_width, other_height = other
    rounding = max(width + height, other_width + other_height)  # sides of a copy are whole pixels
    turned = width != height and size == (other_height, other_width)
    difference = abs(width * other_height - height * other_width)
    return not turned and difference <= rounding


def check_shape(size: Size | None, held: Size, name: str, what: str, of: str = "row") -> None:
    """Raises a `ValueError` if the row of image `name` has a `size`, and `held`, the size of `what`, is no copy's."""
    if size is not None and not same_shape(size, held):
        raise ValueError(
            f"image {name}: {size[0]} x {size[1]} in the {of}, but {held[0]} x {held[1]} in the {what}; boxes and "
            f"sizes are those of the upright picture: correct the {of}, or take the picture that was annotated"
        )


def clip_box(box: Sequence[float], width: float = 1.0, height: float = 1.0) -> list[float]:
    """The part x1, y1, x2, y2 of a box that is inside of a picture of this size."""
    return [min(max(edge, 0.0), float(limit)) for edge, limit in zip(box, (width, height) * 2, strict=True)]


def in_shares(box: Sequence[float], width: float, height: float) -> list[float]:
    """A box in pixels, divided by the size of its picture."""
    return [edge / side for edge, side in zip(box, (width, height) * 2, strict=True)]


def in_pixels(box: Sequence[float], width: float, height: float) -> list[float]:
    """A box in shares of its picture, in pixels."""
    return [share * side for share, side in zip(box, (width, height) * 2, strict=True)]


def enclosing_box(boxes: Boxes) -> npt.NDArray[np.float64]:
    """The smallest box (4,) around boxes (n, 4), with n of at least 1."""
    array = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    low = array[:, :2].min(axis=0)
    high = array[:, 2:].max(axis=0)
    return np.concatenate([low, high])


def _intersection(first: npt.NDArray[Any], second: npt.NDArray[Any], plus_one: bool) -> npt.NDArray[np.floating]:
    top_left = np.maximum(first[:, None, :2], second[None, :, :2])
    bottom_right = np.minimum(first[:, None, 2:], second[None, :, 2:])
    return _area(bottom_right - top_left, plus_one)


def _area(sides: npt.NDArray[np.floating], plus_one: bool) -> npt.NDArray[np.floating]:
    return (sides + plus_one).clip(min=0).prod(axis=-1)

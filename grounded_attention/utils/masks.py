# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Masks of what a phrase means: COCO's run lengths, and the share of boxes that a mask covers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from .open_images import MAX_PIXELS


def read_mask(stored: Any, name: str) -> np.ndarray:
    """The pixels (H, W) bool of a mask: an array (H, W), or COCO's run lengths `{"size": [H, W], "counts": [...]}`,
    not compressed, column by column, first those outside. A map, numbers with a point in [0, 1], stays as it is."""
    try:
        if not isinstance(stored, Mapping):
            pixels = np.asarray(stored)
            if pixels.ndim != 2 or not pixels.size or pixels.dtype.kind not in "biuf":
                raise ValueError(f"{pixels.dtype} of shape {pixels.shape}")
            if pixels.dtype.kind != "f":
                return pixels.astype(bool)
            if not ((pixels >= 0) & (pixels <= 1)).all():
                raise ValueError(f"a map with numbers from {pixels.min():.3g} to {pixels.max():.3g}, not in [0, 1]")
            return pixels
        height, width = (int(side) for side in stored["size"])
        runs = np.array(stored["counts"], dtype=np.int64)
        if (
            not 0 < height * width <= MAX_PIXELS
            or min(runs.min(initial=0), height) < 0
            or runs.sum() != height * width
        ):
            raise ValueError(f"runs of {runs.sum()} pixels for {width} x {height}")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{name}: {error}; expected the pixels (H, W) of a mask or map, or its run lengths: size and counts."
        ) from None
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T


def run_lengths(mask: np.ndarray) -> dict[str, list[int]]:
    """COCO's run lengths, not compressed, of a mask (H, W)."""
    pixels = np.concatenate([[False], mask.T.reshape(-1), [not mask[-1, -1]]])
    ends = np.flatnonzero(pixels[1:] != pixels[:-1])
    return {"size": [*mask.shape], "counts": np.diff(ends, prepend=0).tolist()}


def mask_corners(mask: np.ndarray) -> tuple[int, int, int, int] | None:
    """x1, y1, x2, y2 in pixels of what a mask (H, W) encloses; None if it is empty."""
    rows = np.flatnonzero(mask.any(axis=1))
    columns = np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return None
    return (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)


def mask_boxes(stored: Any, name: str) -> list[list[float]]:
    """The box around a mask, x1, y1, x2, y2 in [0, 1]; none if it is empty."""
    mask = read_mask(stored, f"{name}, mask")
    corners = mask_corners(mask)
    sides = mask.shape[::-1] * 2
    if corners is None:
        return []
    return [[corner / side for corner, side in zip(corners, sides, strict=True)]]


def mask_shares(stored: Any, boxes: np.ndarray, name: str = "phrase") -> np.ndarray:
    """The share of each box (n, 4), x1, y1, x2, y2 in [0, 1], that a mask of its image covers, or the mean of a map
    there, (n,) float32; 0 for a box without area."""
    mask = read_mask(stored, f"{name}, mask")
    height, width = mask.shape
    # sums[y, x] are the pixels above y and left of x; between whole numbers they grow linearly in each direction.
    sums = np.pad(mask, 1).cumsum(axis=0, dtype=np.float64).cumsum(axis=1)

    def sum_to(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        column = x.astype(np.int64)
        row = y.astype(np.int64)
        upper = sums[row, column] * (1 - x + column) + sums[row, column + 1] * (x - column)
        lower = sums[row + 1, column] * (1 - x + column) + sums[row + 1, column + 1] * (x - column)
        return np.asarray(upper * (1 - y + row) + lower * (y - row))

    x1, y1, x2, y2 = (boxes.astype(np.float64).clip(0, 1) * [width, height, width, height]).T
    inside = sum_to(x2, y2) - sum_to(x1, y2) - sum_to(x2, y1) + sum_to(x1, y1)
    area = (x2 - x1) * (y2 - y1)
    return np.divide(inside, area, out=np.zeros_like(area), where=area > 0).clip(0, 1).astype(np.float32)


def mask_regions(stored: Any, boxes: np.ndarray, matched: np.ndarray, cover: Any, name: str) -> tuple[Any, np.ndarray]:
    """[`mask_shares`] of regions (n, 4), and which of them count: those that `cover` finds covered enough, or without
    it those whose boxes matched (n,); of a map all that it does not leave at 0."""
    shares = mask_shares(stored, boxes, name)
    if not isinstance(stored, Mapping) and np.asarray(stored).dtype.kind == "f":
        return shares, shares > 0
    return shares, matched if cover is None else cover(shares[None])[0]

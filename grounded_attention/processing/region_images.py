# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The image of each region, for examples with several images.

Shapes: B batch, n regions given for an example, G = max n over the batch, R region columns.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .number_arrays import to_array
from .region_columns import RegionColumns, first_ranked


def stack_image_indices(indices: Sequence[Any] | None, counts: np.ndarray, images: int) -> np.ndarray:
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


def limit_each_image(ranks: np.ndarray, counts: np.ndarray, images: np.ndarray, limit: int) -> np.ndarray:
    """Selects the first regions of each image."""
    given = np.arange(ranks.shape[1]) < counts[:, None]
    limit_of_each = np.full(len(counts), limit)
    kept = np.zeros_like(given)
    for image in range(int(images.max(initial=0)) + 1):
        kept |= first_ranked(ranks, given & (images == image), limit_of_each)
    return kept


def image_columns(indices: Sequence[Any], regions: RegionColumns) -> np.ndarray:
    """Returns the image of the region in each column."""
    out = np.zeros(regions.arrays["region_boxes"].shape[:2], dtype=np.int64)
    for row, columns, images in zip(out, regions.columns, indices, strict=True):
        given = np.zeros(0, dtype=np.int64) if images is None else np.asarray(images)
        kept = columns[: len(given)] >= 0
        row[columns[: len(given)][kept]] = given[kept]
    return out

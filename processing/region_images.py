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
"""Which of an example's images each of its regions is from.

Shapes: B batch, n regions given for an example, G = max n over the batch, R region columns.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .number_arrays import to_array
from .region_columns import RegionColumns, first_ranked


def image_of_each(indices: Sequence[Any] | None, counts: np.ndarray, images: int) -> np.ndarray:
    """(B, G) int64, the image of each region, 0 for padding and where none is said.

    Args:
        indices: B arrays (n,), or None: all regions are from one image.
        counts: (B,) regions of each example.
        images: How many images the family takes.

    Raises:
        ValueError: Not one index a region, or one beyond the images.
    """
    out = np.zeros((len(counts), int(counts.max(initial=0))), dtype=np.int64)
    for example, value in enumerate(indices if indices is not None else ()):
        array = to_array([] if value is None else value, f"Example {example}: region_image_indices", kinds="iufb")
        if array.shape != (counts[example],) or (array.size and array.dtype.kind not in "iu"):
            raise ValueError(
                f"Example {example}: region_image_indices of shape {array.shape} and type {array.dtype} for "
                f"{counts[example]} regions; expected one integer a region."
            )
        if ((array < 0) | (array >= images)).any():
            known = "0" if images == 1 else f"0 to {images - 1}"
            raise ValueError(
                f"Example {example}: region_image_indices {sorted(set(array.tolist()))}, but the model takes "
                f"{images} image(s) an example; expected {known}."
            )
        out[example, : len(array)] = array
    return out


def limit_each_image(ranks: np.ndarray, counts: np.ndarray, images: np.ndarray, most: int) -> np.ndarray:
    """(B, G) bool: of each image the `most` regions that come first in `ranks` (B, G); `images` (B, G)."""
    given = np.arange(ranks.shape[1]) < counts[:, None]
    limits = np.full(len(counts), most)
    kept = np.zeros_like(given)
    for image in range(int(images.max(initial=0)) + 1):
        kept |= first_ranked(ranks, given & (images == image), limits)
    return kept


def image_columns(indices: Sequence[Any], regions: RegionColumns) -> np.ndarray:
    """(B, R) int64: the image of the region in each column, 0 for padding."""
    out = np.zeros(regions.arrays["region_boxes"].shape[:2], dtype=np.int64)
    for row, columns, images in zip(out, regions.columns, indices, strict=True):
        given = np.zeros(0, dtype=np.int64) if images is None else np.asarray(images)
        kept = columns[: len(given)] >= 0
        row[columns[: len(given)][kept]] = given[kept]
    return out

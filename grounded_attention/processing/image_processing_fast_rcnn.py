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
"""Pixels for the region-feature network of VL-BERT: the resize, colour order and means of its public code."""

from ..utils.named_types import Size

from .oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image
from transformers import BatchFeature
from transformers.image_processing_utils import BaseImageProcessor
from transformers.utils import auto_docstring

from ..utils.open_images import open_images

# Means of the network's Caffe weights, in the order blue, green, red, for pixels from 0 to 255.
BGR_MEAN = (102.9801, 115.9465, 122.7717)


@auto_docstring(
    custom_intro="""
    Converts images to the input of VL-BERT's region-feature network (VL-BERT public code). The shorter side becomes
    600 pixels unless the longer one would exceed 1000. Channels are blue, green, red from 0 to 255 minus their mean.
    Images of a batch are padded with zeros on the right and at the bottom.
    """
)
class FastRCNNImageProcessor(BaseImageProcessor):
    model_input_names = ["pixel_values", "image_sizes"]

    def __init__(
        self,
        size: Mapping[str, int] | None = None,
        image_mean: Sequence[float] = BGR_MEAN,
        image_std: Sequence[float] = (1.0, 1.0, 1.0),
        **kwargs,  # without annotation, which transformers 5.4 would treat as a TypedDict
    ) -> None:
        r"""
        size (`dict[str, int]`, *optional*, defaults to `{"shortest_edge": 600, "longest_edge": 1000}`):
            Length of the shorter side after resizing, and the largest length of the longer side, in pixels.
        image_mean (`list[float]`, *optional*, defaults to `(102.9801, 115.9465, 122.7717)`):
            Means of blue, green and red, subtracted from pixels of 0 to 255.
        image_std (`list[float]`, *optional*, defaults to `(1.0, 1.0, 1.0)`):
            Divisors of blue, green and red after the subtraction.
        """
        super().__init__(**kwargs)
        self.auto_map = {"AutoImageProcessor": "image_processing_fast_rcnn.FastRCNNImageProcessor"}
        self.size = _check_size({"shortest_edge": 600, "longest_edge": 1000} if size is None else size)
        self.image_mean = _check_channels("image_mean", image_mean)
        self.image_std = _check_channels("image_std", image_std)
        if 0 in self.image_std:
            raise ValueError(f"image_std={image_std!r}: pixels are divided by it, so 0 is not allowed.")

    @auto_docstring
    def preprocess(self, images: Any, return_tensors: str | None = "pt", **kwargs) -> BatchFeature:
        r"""
        images (path, PIL image, array, or a list of them):
            B images. Arrays have the shape (H, W), (H, W, C) or (C, H, W) and hold integers from 0 to 255 or floats in
            [0, 1].
        return_tensors (`str`, *optional*, defaults to `"pt"`):
            `"pt"`, `"np"`, or `None` for arrays of NumPy too.

        Returns:
            [`BatchFeature`]: `pixel_values` (B, 3, H, W) float32 and `image_sizes` (B, 2) int64, width and height of
            each image inside the padded canvas, in pixels.

        Raises:
            ValueError: An image cannot be read; the message names its file. See `open_image`.
        """
        if kwargs:
            raise TypeError(f"Unknown arguments of the image processor: {', '.join(sorted(kwargs))}.")
        pixels = [self.pixels(picture) for picture in open_images(images)]
        data = {
            "pixel_values": pad_pixels(pixels),
            "image_sizes": np.array([array.shape[:0:-1] for array in pixels], dtype=np.int64),
        }
        return BatchFeature(data, return_tensors)

    def resized(self, width: int, height: int) -> Size:
        """Computes the size after resizing, rounded down as in the VL-BERT public code, but not to 0.

        Args:
            width (`int`): Width of the image in pixels.
            height (`int`): Height of the image in pixels.

        Returns:
            `tuple[int, int]`: New width and height in pixels.
        """
        shorter = min(width, height)
        longer = max(width, height)
        target = self.size["shortest_edge"]
        limit = self.size["longest_edge"]
        if target * longer > limit * shorter:
            target = max(1, limit * shorter // longer)
        other = min(limit, target * longer // shorter)
        if width < height:
            return (target, other)
        return (other, target)

    def pixels(self, picture: Image.Image) -> np.ndarray:
        """Converts one RGB picture, resized and normalised, to (3, h, w) float32 in the order blue, green, red."""
        size = self.resized(*picture.size)
        if size == picture.size:
            resized = picture
        else:
            resized = picture.resize(size, Image.Resampling.BILINEAR)
        mean, spread = np.array([self.image_mean, self.image_std], dtype=np.float32)
        array = (np.asarray(resized, dtype=np.float32)[..., ::-1] - mean) / spread
        return np.ascontiguousarray(array.transpose(2, 0, 1))


def pad_pixels(pixels: Sequence[np.ndarray]) -> np.ndarray:
    """Pads images (3, h, w) with zeros at the right and the bottom: (B, 3, H, W) float32, of the largest ones."""
    height = max(1, *(array.shape[1] for array in pixels))
    width = max(1, *(array.shape[2] for array in pixels))
    padded = np.zeros((len(pixels), 3, height, width), dtype=np.float32)
    for row, array in zip(padded, pixels, strict=True):
        row[:, : array.shape[1], : array.shape[2]] = array
    return padded


def _check_size(size: Any) -> dict[str, int]:
    expected = {"shortest_edge", "longest_edge"}
    if not isinstance(size, Mapping) or set(size) != expected or not all(isinstance(v, int) for v in size.values()):
        raise ValueError(f"size={size!r}, expected {{'shortest_edge': pixels, 'longest_edge': pixels}}.")
    if not 0 < size["shortest_edge"] <= size["longest_edge"]:
        raise ValueError(f"size={size!r}: expected 0 < shortest_edge <= longest_edge.")
    return dict(size)


def _check_channels(name: str, values: Sequence[float]) -> list[float]:
    values = list(values)
    if len(values) != 3 or not all(isinstance(value, (int, float)) for value in values):
        raise ValueError(f"{name}={values!r}, expected three numbers: blue, green, red.")
    return [float(value) for value in values]


__all__ = ["OLDEST_TRANSFORMERS", "FastRCNNImageProcessor"]

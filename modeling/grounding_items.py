# Copyright 2026 The grounded-attention authors. All rights reserved.
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
"""One input of the pipeline `visual-grounding`: what is known of an image's regions, and checks of it; n regions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from .caption_phrases import Phrase


@dataclass(eq=False)
class GroundingItem:
    """
    A caption, its phrases and the regions of its image; n regions.

    Args:
        caption (`str`): the text.
        phrases (`list[Phrase]`): spans of it.
        image (`PIL.Image.Image`, *optional*): the picture, where it is needed.
        size (`tuple[int, int]`, *optional*): width and height in pixels; known where boxes are.
        boxes (`np.ndarray` of shape `(n, 4)`, *optional*): `(x1, y1, x2, y2)` divided by width and height, float32.
        features (`np.ndarray` of shape `(n, D)`, *optional*): region features.
        scores (`list[float]`, *optional*): the detector's score of each region.
        labels (`list[str | None]`): what the detector calls each region.
    """

    caption: str
    phrases: list[Phrase]
    image: Image.Image | None = None
    size: tuple[int, int] | None = None
    boxes: np.ndarray | None = None
    features: np.ndarray | None = None
    scores: list[float] | None = None
    labels: Sequence[str | None] = ()

    @property
    def known_boxes(self) -> np.ndarray:
        """`boxes`, which something must have found by now."""
        if self.boxes is None:
            raise ValueError(f"no regions were found for the caption {self.caption!r}")
        return self.boxes

    @property
    def pixels(self) -> np.ndarray:
        """The boxes in pixels, `(n, 4)` float32."""
        size = self.size or (self.image.size if self.image is not None else (1, 1))
        return self.known_boxes * np.tile(np.asarray(size, np.float32), 2)


def image_size(image: Image.Image | None, given: Any) -> tuple[int, int] | None:
    """Width and height: those of the image, or as they are given."""
    if given is None:
        return None if image is None else image.size
    width, height = (int(value) for value in given)
    if image is not None and image.size != (width, height):
        raise ValueError(f"image_size ({width}, {height}), but the image has {image.size}")
    return width, height


def normalise(boxes: Any, size: tuple[int, int] | None) -> np.ndarray:
    """Boxes in pixels, cut at the edges of the image, divided by its size: (n, 4) float32."""
    if size is None:
        raise ValueError("boxes are in pixels: give the image, or image_size")
    pixels = np.asarray(boxes, np.float32)
    if pixels.ndim != 2 or pixels.shape[1] != 4 or not len(pixels):
        raise ValueError(f"boxes of shape {pixels.shape}, expected (n, 4): x1, y1, x2, y2 in pixels")
    limit = np.tile(np.asarray(size, np.float32), 2)
    wrong = ~np.isfinite(pixels).all(1) | (pixels < -1).any(1) | (pixels > limit + 1).any(1)
    wrong |= (pixels[:, :2] > pixels[:, 2:]).any(1)
    if wrong.any():
        index = int(wrong.argmax())
        expected = f"x1 <= x2 <= {size[0]} and y1 <= y2 <= {size[1]} in pixels"
        raise ValueError(f"box {index}: found {pixels[index].tolist()}, expected {expected}")
    if pixels.max() <= 1 and min(size) > 2:
        raise ValueError(f"boxes up to {pixels.max():g} look divided by the image size; give pixels")
    return pixels.clip(0, limit) / limit


def of_each(values: Any, count: int, name: str) -> list[Any] | None:
    """A plain list with one entry a region."""
    if values is None:
        return None
    entries = values.tolist() if hasattr(values, "tolist") else list(values)
    if len(entries) != count:
        raise ValueError(f"{len(entries)} {name} of {count} boxes, expected one a box")
    return entries


__all__ = ["GroundingItem", "image_size", "normalise", "of_each"]

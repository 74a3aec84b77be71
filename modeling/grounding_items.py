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
"""One input of the pipeline `visual-grounding`: a caption and the regions of its image, with checks; n regions."""

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
        phrases (`list[Phrase]`): spans of the caption.
        image (`PIL.Image.Image`, *optional*): the image, if it is needed.
        size (`tuple[int, int]`, *optional*): width and height in pixels; required if boxes are given.
        boxes (`np.ndarray` of shape `(n, 4)`, *optional*): `(x1, y1, x2, y2)` divided by width and height, float32.
        features (`np.ndarray` of shape `(n, D)`, *optional*): region features.
        scores (`list[float]`, *optional*): the detector's score of each region.
        labels (`Sequence[str | None]`): the detector's class of each region.
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
        """`boxes`; `ValueError` if no regions were found."""
        if self.boxes is None:
            raise ValueError(f"no regions were found for the caption {self.caption!r}")
        return self.boxes

    @property
    def pixels(self) -> np.ndarray:
        """The boxes in pixels, `(n, 4)` float32."""
        size = self.size or (self.image.size if self.image is not None else (1, 1))
        return self.known_boxes * np.tile(np.asarray(size, np.float32), 2)


def image_size(image: Image.Image | None, given: Any) -> tuple[int, int] | None:
    """Width and height in pixels: `given`, or the size of the image. `ValueError` if they differ."""
    if given is None:
        return None if image is None else image.size
    width, height = (int(value) for value in given)
    if image is not None and image.size != (width, height):
        raise ValueError(f"image_size is ({width}, {height}), but the image has the size {image.size}")
    return width, height


def normalise(boxes: Any, size: tuple[int, int] | None) -> np.ndarray:
    """Boxes in pixels, clipped to the image and divided by its size: (n, 4) float32. `ValueError` if malformed."""
    if size is None:
        raise ValueError("boxes are in pixels: give the image or image_size too")
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
        raise ValueError(f"boxes up to {pixels.max():g} look normalised by the image size; give boxes in pixels")
    return pixels.clip(0, limit) / limit


def of_each(values: Any, count: int, name: str) -> list[Any] | None:
    """The values as a list with one entry per region; `None` without values. `ValueError` if the length differs."""
    if values is None:
        return None
    entries = values.tolist() if hasattr(values, "tolist") else list(values)
    if len(entries) != count:
        raise ValueError(f"found {len(entries)} {name} for {count} boxes, expected one per box")
    return entries


__all__ = ["GroundingItem", "image_size", "normalise", "of_each"]

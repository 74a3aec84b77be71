# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One input of the pipeline `visual-grounding`: a caption and the regions of its image, with checks; n regions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
from PIL import Image

from ..processing.phrase import Phrase
from ..processing.region_boxes import check_pixel_boxes


@dataclass(eq=False)
class GroundingItem:
    """A caption, its phrases and the regions of its image; n regions."""

    caption: str
    phrases: list[Phrase]  # spans of the caption
    image: Image.Image | None = None  # the image, if it is needed
    size: tuple[int, int] | None = None  # width and height in pixels; required if boxes are given
    boxes: np.ndarray | None = None  # (n, 4): `(x1, y1, x2, y2)` divided by width and height, float32
    features: np.ndarray | None = None  # (n, D): region features
    scores: list[float] | None = None  # the detector's score of each region
    labels: Sequence[str | None] = ()  # the detector's class of each region

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


def image_size(image: Image.Image | None, size: Any) -> tuple[int, int] | None:
    """Width and height in pixels: `size`, or the size of the image. `ValueError` if they differ."""
    if size is None:
        if image is None:
            return None
        return image.size
    width, height = (int(value) for value in size)
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
    check_pixel_boxes(pixels, size)
    limit = np.tile(np.asarray(size, np.float32), 2)
    return pixels.clip(0, limit) / limit


def of_each(values: Any, count: int, name: str) -> list[Any] | None:
    """The values as a list with one entry per region; `None` without values. `ValueError` if the length differs."""
    if values is None:
        return None
    entries = values.tolist() if hasattr(values, "tolist") else list(values)
    if len(entries) != count:
        raise ValueError(f"found {len(entries)} {name} for {count} boxes, expected one per box")
    return entries


def read_caption(item: Any, known: Sequence[str]) -> str:
    """The caption of an input. `ValueError` if the input is no dictionary with these keys, or has no caption."""
    if not isinstance(item, Mapping):
        raise ValueError(f"found {type(item).__name__}, expected an image with a caption, or a dictionary")
    unknown = sorted(set(item) - set(known))
    caption = item.get("caption")
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}; known keys of an input are {', '.join(known)}")
    if not isinstance(caption, str) or not caption.strip():
        raise ValueError(f"caption {caption!r}: expected a text")
    return caption


def is_url(image: Any) -> bool:
    """Whether an image is given by its address."""
    return isinstance(image, str) and image.startswith(("http://", "https://"))


def download_image(address: str) -> BytesIO:
    """The file at an address, at most 256 MiB of it, for `open_image`. `ValueError` for any error of the client."""
    try:
        with urlopen(Request(address, headers={"User-Agent": "grounded-attention"}), timeout=60) as file:
            return BytesIO(file.read(2**28))
    except Exception as error:
        raise ValueError(f"image {address}: {type(error).__name__}: {error}") from error


def rows_of_boxes(features: Any, count: int) -> np.ndarray:
    """Features of given boxes, (count, D) float32. `ValueError` if there is not a row for each box."""
    values = np.asarray(features, np.float32)
    if values.ndim != 2 or len(values) != count:
        raise ValueError(f"features of shape {values.shape}, expected ({count}, D): a row for each box")
    return values

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How a family of vision-language models lays out one image: its pictures, and the grid of tokens of each one.

Each function of `grid_layouts` and `tile_layouts` makes the text that stands for an image in the prompt, as the
processor of transformers makes it, with the boxes of its tokens.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .videos import Video

# A patch that shares less than this part of the image's width or height with the image shows padding only.
SMALLEST_OVERLAP = 1e-9


@dataclass(frozen=True)
class ImageFrame:
    """A picture made from an image, and the area of the image that it shows."""

    width: int
    height: int
    # The area x1, y1, x2, y2 of the original image, divided by its width and height. What lies outside [0, 1] is
    # padding
    box: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)

    def resize(self, width: int, height: int) -> "ImageFrame":
        """Returns the picture in another size (`ImageFrame`); it shows the same area."""
        return replace(self, width=width, height=height)

    def crop(self, left: int, top: int, width: int, height: int) -> "ImageFrame":
        """Cuts a rectangle out of the picture; outside of the picture is padding."""
        x1, y1, x2, y2 = self.box
        step_x = (x2 - x1) / self.width
        step_y = (y2 - y1) / self.height
        x1 = x1 + left * step_x
        y1 = y1 + top * step_y
        return ImageFrame(width, height, (x1, y1, x1 + width * step_x, y1 + height * step_y))

    def center_crop(self, width: int, height: int) -> "ImageFrame":
        """Cuts (or pads) to a size around the centre; of an odd number of pixels the first side loses one less."""
        return self.crop((self.width - width) // 2, (self.height - height) // 2, width, height)

    def tiles(self, rows: int, columns: int) -> list["ImageFrame"]:
        """Divides the picture into equal parts, row by row (`list[ImageFrame]`)."""
        width = self.width // columns
        height = self.height // rows
        return [self.crop(j * width, i * height, width, height) for i in range(rows) for j in range(columns)]

    def grid(self, rows: int, columns: int) -> np.ndarray:
        """Computes the boxes of equal patches, row by row, (rows * columns, 4) float64, see [`cells`]."""
        return self.cells(even_intervals(rows), even_intervals(columns))

    def cells(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Computes the boxes of patches in the original image."""
        x1, y1, x2, y2 = self.box
        xs = x1 + columns * (x2 - x1)
        ys = y1 + rows * (y2 - y1)
        boxes = np.empty((len(rows), len(columns), 4))
        boxes[..., 0::2], boxes[..., 1::2] = xs[None], ys[:, None]
        boxes = boxes.reshape(-1, 4).clip(0.0, 1.0)
        boxes[((boxes[:, 2:] - boxes[:, :2]) < SMALLEST_OVERLAP).any(axis=1)] = np.nan
        return boxes


def even_intervals(count: int) -> np.ndarray:
    """Divides [0, 1] into equal intervals, (count, 2) float64."""
    edges = np.arange(count + 1) / count
    return np.stack([edges[:-1], edges[1:]], axis=1)


def window_intervals(count: int, queries: int) -> np.ndarray:
    """Finds the window that each of `count` values reads, if `queries` values in a row read the same one."""
    return even_intervals(count // queries).repeat(queries, axis=0)


def pooled_intervals(intervals: np.ndarray, pooled: int) -> np.ndarray:
    """What each of `pooled` values of a bilinear interpolation reads of intervals in a row, (pooled, 2) float64."""
    count = len(intervals)
    centre = np.maximum((np.arange(pooled) + 0.5) * (count / pooled) - 0.5, 0.0)
    first = np.floor(centre).astype(np.int64)
    last = np.minimum(first + (centre > first), count - 1)
    return np.stack([intervals[first, 0], intervals[last, 1]], axis=1)


# The text of a prompt that stands for one image: strings, and for each picture the boxes (n, 4) of its n tokens, or a
# list of such parts where the picture has other tokens between its rows.
ImageLayout = list[str | np.ndarray | list[str | np.ndarray]]

# A token without a place in the image: a newline, a class token.
NO_BOX = np.full((1, 4), np.nan)


@dataclass(frozen=True)
class ImageSettings:
    """What the layout of one image depends on."""

    processor: Any
    given: Mapping[str, Any]  # Settings of this call, which replace those of the image processor
    width: int  # Width of the image in pixels
    height: int  # Height of the image in pixels
    alone: bool  # Whether the example has no other image
    number: int = 0  # The place of the image among those of the example
    part: str = "image_processor"  # The part of the processor that reads it

    @property
    def frame(self) -> ImageFrame:
        """The original image."""
        return ImageFrame(self.width, self.height)

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a setting of the image processor (None counts as missing)."""
        value = self.given.get(name)
        if value is None:
            value = getattr(getattr(self.processor, self.part), name, None)
        if value is None:
            return default
        return value

    def named(self, *names: str) -> dict[str, Any]:
        """Returns settings by their names, for a function of transformers (`dict[str, Any]`)."""
        return {name: self.get(name) for name in names}

    def edges(self, name: str) -> dict[str, int]:
        """Returns a size setting as a plain dictionary of its edges (`dict[str, int]`)."""
        size = self.get(name, {})
        names = ("height", "width", "shortest_edge", "longest_edge")
        return {edge: int(size[edge]) for edge in names if edge in size and size[edge] is not None}

    def upstream(self, name: str) -> Any:
        """Finds a function or a text of the file that defines the part of the processor, or the processor."""
        part = type(getattr(self.processor, self.part))
        for cls in (*part.__mro__, *type(self.processor).__mro__):
            function = getattr(sys.modules.get(cls.__module__), name, None)
            if function is not None:
                return function
        raise ValueError(f"{part.__name__}: its file has no function {name}.")

    def square(self, tokens: int) -> int:
        """Returns the side of a square grid of tokens (`int`)."""
        side = math.isqrt(tokens)
        if side * side != tokens:
            raise ValueError(f"{type(self.processor).__name__}: {tokens} image tokens do not form a square grid.")
        return side


@dataclass(frozen=True, kw_only=True)
class VideoSettings(ImageSettings):
    """What the layouts of one video depend on; width and height are those of its frames."""

    video: Video
    inputs: Mapping[str, Any]  # What the processor made of the batch
    place: int  # The place of the video among those of the batch
    part: str = "video_processor"

    @property
    def count(self) -> int:
        """How many frames the video has."""
        return len(self.video.frames)

    @property
    def times(self) -> list[float]:
        """The seconds of each step (`list[float]`)."""
        return [time for _, time in self.video.steps(self.get("temporal_patch_size", 1))]


def layout_text(layout: ImageLayout, token: str) -> str:
    """The text of a layout, in which `token` stands for each image token."""
    flat = []
    for piece in layout:
        flat.extend(piece if isinstance(piece, list) else [piece])
    return "".join(part if isinstance(part, str) else token * len(part) for part in flat)


def picture_boxes(layout: ImageLayout) -> list[np.ndarray]:
    """The boxes (n, 4) of the tokens of each picture of a layout."""
    pictures = []
    for piece in layout:
        if not isinstance(piece, str):
            pictures.append(piece if isinstance(piece, list) else [piece])
    return [np.concatenate([part for part in each if not isinstance(part, str)]) for each in pictures]


def ended_rows(cells: np.ndarray, rows: int) -> np.ndarray:
    """The cells of a picture, with a newline at the end of each row."""
    grid = cells.reshape(rows, len(cells) // max(rows, 1), 4)  # a very long image has none on its canvas
    return np.concatenate([grid, NO_BOX[None].repeat(rows, axis=0)], axis=1).reshape(-1, 4)


def lines(grid: np.ndarray, rows: int, end: str, last: str) -> list[str | np.ndarray]:
    """A picture whose rows of tokens end with a token, the last one with another."""
    return [*[part for row in np.split(grid, rows) for part in (row, end)][:-1], last]


def pad_to_square(frame: ImageFrame) -> ImageFrame:
    side = max(frame.width, frame.height)
    # The first side gets the smaller part of an odd padding.
    return frame.crop(-((side - frame.width) // 2), -((side - frame.height) // 2), side, side)


def resize(frame: ImageFrame, size: Mapping[str, int]) -> ImageFrame:
    if set(size) == {"shortest_edge"}:
        short = min(frame.width, frame.height)
        long = int(size["shortest_edge"] * max(frame.width, frame.height) / short)
        landscape = frame.width > frame.height
        return frame.resize(*(long, size["shortest_edge"]) if landscape else (size["shortest_edge"], long))
    if set(size) == {"height", "width"}:
        return frame.resize(size["width"], size["height"])
    raise ValueError(f"Images are resized to {dict(size)}; expected a shortest_edge, or a height and a width.")


def center_crop(settings: ImageSettings, frame: ImageFrame) -> ImageFrame:
    if settings.get("do_resize"):
        frame = resize(frame, settings.edges("size"))
    if settings.get("do_center_crop"):
        crop = settings.edges("crop_size")
        frame = frame.center_crop(crop["width"], crop["height"])
    return frame


def class_tokens(settings: ImageSettings) -> np.ndarray:
    """Tokens of the vision tower before the patches, (n, 4) NaN; the strategy "default" removes the first."""
    processor = settings.processor
    count = int(getattr(processor, "num_additional_image_tokens", 0) or 0)
    return NO_BOX.repeat(max(0, count - (processor.vision_feature_select_strategy == "default")), axis=0)


def clock(time: float) -> str:
    """Minutes and seconds."""
    return "{:02d}:{:02d}".format(*divmod(int(time), 60))

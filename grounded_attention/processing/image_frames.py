# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Geometry of what an image processor does to a picture: resizing, cropping, padding and grids of patches.

A frame remembers which area of the original image it shows, so that every patch has a box in the original image.
"""

from dataclasses import dataclass, replace

import numpy as np

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


def pooled_intervals(count: int, pooled: int) -> np.ndarray:
    """Finds the patches that each value of a bilinear interpolation reads."""
    centre = np.maximum((np.arange(pooled) + 0.5) * (count / pooled) - 0.5, 0.0)
    first = np.floor(centre).astype(np.int64)
    return np.stack([first, np.minimum(first + 1 + (centre > first), count)], axis=1)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pictures of an image with a map of attention over its patches, and the box found from it."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from PIL import Image

from .figure_style import BLUE, DPI, VERMILLION, WIDTH, save

# Characters of a caption in a line of a panel.
CAPTION_WIDTH = 34
# Where there is no attention, this much of the light is gone.
DARKEST = 0.8


@dataclass(frozen=True, eq=False)
class PatchAttention:
    """The attention of a phrase on the patches of an image.

    Args:
        phrase (`str`): the phrase.
        map (`np.ndarray`): (Y, X) float, attention on the cells of a grid, not negative.
        frame (`tuple[float, ...]`): x1, y1, x2, y2 of the grid, divided by width and height of the image.
        box (`tuple[float, ...]`): the box found, likewise.
        share (`float`): the part of the attention that is in the box.
    """

    phrase: str
    map: np.ndarray
    frame: tuple[float, float, float, float]
    box: tuple[float, float, float, float]
    share: float


def patch_figure(image: Image.Image, phrases: Sequence[PatchAttention], path: str | Path) -> Figure:
    """Draws one panel for each phrase: the image, brighter where the phrase attends, and the box.

    Args:
        image (`Image.Image`): the image.
        phrases (`Sequence[PatchAttention]`): one or more phrases.
        path (`str` or `Path`): a .png, .pdf or .svg file; its folder is created.

    Returns:
        `Figure`: the figure, already saved.
    """
    across = min(len(phrases), 3)
    down = math.ceil(len(phrases) / across)
    width = min(WIDTH / DPI, 4.2 * across)
    height = down * (width / across * min(image.height / image.width, 2.0) + 0.65)
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    for axes, phrase in zip(panels, phrases, strict=False):
        _draw(axes, image, phrase)
    for axes in panels[len(phrases) :]:
        axes.set_axis_off()
    return save(figure, path)


def patch_comparison_figure(
    image: Image.Image,
    phrases_by_model: Mapping[str, Sequence[PatchAttention]],
    gold: Sequence[np.ndarray],
    path: str | Path,
) -> Figure:
    """Draws the same phrases for several models: one row for each model, one column for each phrase.

    Args:
        image (`Image.Image`): the image.
        phrases_by_model (`Mapping[str, Sequence[PatchAttention]]`): name of a model -> its P phrases.
        gold (`Sequence[np.ndarray]`): the gold boxes (G, 4) of each of the P phrases, drawn with dashes.
        path (`str` or `Path`): a .png, .pdf or .svg file; its folder is created.

    Returns:
        `Figure`: the figure, already saved.
    """
    down, across = len(phrases_by_model), len(gold)
    width = min(WIDTH / DPI, 4.2 * across)
    height = down * (width / across * min(image.height / image.width, 2.0) + 0.65) + 0.2
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    panels = figure.subplots(down, across, squeeze=False)
    for row, (name, phrases) in zip(panels, phrases_by_model.items(), strict=True):
        for axes, phrase, boxes in zip(row, phrases, gold, strict=True):
            _draw(axes, image, phrase)
            for box in boxes:
                _draw_box(axes, box, image.size, edgecolor=BLUE, linestyle=(0, (4, 2)), linewidth=2.0)
        row[0].set_ylabel(name, fontsize=11)
    figure.supxlabel("solid: the box that the attention gives; dashed: the box of the object", fontsize=9)
    return save(figure, path)


def _draw_box(axes: Axes, box: Sequence[float] | np.ndarray, size: tuple[int, int], **style: Any) -> None:
    x1, y1, x2, y2 = (float(edge) * side for edge, side in zip(box, size * 2, strict=True))
    drawn = Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, **style)
    drawn.set_path_effects([withStroke(linewidth=style["linewidth"] + 2, foreground="white")])
    axes.add_patch(drawn)


def _draw(axes: Axes, image: Image.Image, phrase: PatchAttention) -> None:
    width, height = image.size
    axes.imshow(np.asarray(image))
    x1, y1, x2, y2 = phrase.frame
    # A centre crop leaves the sides of an image out: the model sees nothing of them.
    for left, top, right, bottom in ((0, 0, x1, 1), (x2, 0, 1, 1), (x1, 0, x2, y1), (x1, y2, x2, 1)):
        size = ((right - left) * width, (bottom - top) * height)
        axes.add_patch(Rectangle((left * width, top * height), *size, facecolor=(0, 0, 0, DARKEST), linewidth=0))
    light = np.sqrt(phrase.map / max(float(phrase.map.max()), 1e-12))
    extent = (x1 * width, x2 * width, y2 * height, y1 * height)
    dark = np.zeros((*light.shape, 4))
    dark[..., 3] = DARKEST * (1 - light)
    axes.imshow(dark, extent=extent, interpolation="nearest")
    _draw_box(axes, phrase.box, image.size, edgecolor=VERMILLION, linewidth=2.5)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_xticks([])
    axes.set_yticks([])
    caption = "\n".join(textwrap.wrap(phrase.phrase, CAPTION_WIDTH)[:3])
    axes.set_title(f"{caption}\n{phrase.share:.0%} of the attention in the box", fontsize=9)

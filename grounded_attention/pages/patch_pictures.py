# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pictures of an image with a map of attention over its patches, and the box found from it."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from PIL import Image

from grounded_attention.processing.image_frames import ImageFrame

from .colours import BLUE, VERMILLION
from .figure_style import DPI, WIDTH, panels, save
from .overlay import UNSEEN, attention_overlay

# Characters of a caption in a line of a panel.
LETTERS = 14  # of the legend, in an inch
CAPTION_WIDTH = 34
LONGEST = 800  # pixels, longer side of a picture


@dataclass(frozen=True, eq=False)
class PatchAttention:
    """The attention of a phrase on the patches of an image."""

    phrase: str
    map: np.ndarray
    frame: tuple[float, float, float, float]
    box: tuple[float, float, float, float]
    share: float


def patch_figure(
    image: Image.Image,
    phrases: Sequence[PatchAttention],
    path: str | Path | None = None,
    gold: Sequence[Any] = (),
    models: Sequence[str] = (),
) -> Figure:
    """Draws one panel for each phrase: the image, coloured by where the phrase attends, the box, and gold boxes.

    With `models`, `phrases` are the same for each of them, one row after the other; `gold` has those of one row.
    """
    across = len(phrases) // len(models) if models else min(len(phrases), 3)
    down = math.ceil(len(phrases) / across)
    width = min(WIDTH / DPI, 4.2 * across)
    height = down * (width / across * min(image.height / image.width, 2.0) + 0.65) + 0.6
    figure, grid = panels(len(phrases), across, (width, height))
    for axes, phrase, boxes in zip(grid, phrases, cycle(gold or [()]), strict=False):
        _draw(axes, image, phrase, boxes)
    for axes, model in zip(grid[::across], models, strict=False):
        axes.set_ylabel(model, fontsize=11)
    _draw_legend(figure, any(map(len, gold)))
    return figure if path is None else save(figure, path)


def _draw_legend(figure: Figure, with_gold: bool) -> None:
    more = "\nsolid: the box that the attention gives; dashed: the box of the object" if with_gold else ""
    scale = ScalarMappable(PowerNorm(0.5, 0, 1), "cividis")
    bar = figure.colorbar(
        scale, ax=figure.axes, location="bottom", shrink=0.6, ticks=[0, 0.25, 1], fraction=0.03, aspect=40
    )
    bar.ax.set_xticklabels(["0", "¼", "1"])
    lines = f"attention on a cell, as a part of the largest; {UNSEEN}{more}".splitlines()
    across = int(figure.get_figwidth() * LETTERS)
    bar.set_label("\n".join(textwrap.fill(line, across) for line in lines), fontsize=9)


def _draw_box(axes: Axes, box: Sequence[float] | np.ndarray, size: tuple[int, int], **style: Any) -> None:
    x1, y1, x2, y2 = (float(edge) * side for edge, side in zip(box, size * 2, strict=True))
    drawn = Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, **style)
    drawn.set_path_effects([withStroke(linewidth=style["linewidth"] + 2, foreground="white")])
    axes.add_patch(drawn)


def _draw(axes: Axes, image: Image.Image, phrase: PatchAttention, gold: Any) -> None:
    width, height = image.size
    scale = LONGEST / max(width, height)
    size = max(4, round(width * scale)), max(4, round(height * scale))
    cells, weights = ImageFrame(1, 1, phrase.frame).grid(*phrase.map.shape), phrase.map.ravel()
    overlay = attention_overlay(image, cells, weights, size, float(weights.max()))
    axes.imshow(np.asarray(overlay), extent=(0, width, height, 0), aspect="equal")
    _draw_box(axes, phrase.box, image.size, edgecolor=VERMILLION, linewidth=2.5)
    for box in gold:
        _draw_box(axes, box, image.size, edgecolor=BLUE, linestyle=(0, (4, 2)), linewidth=2.0)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_xticks([])
    axes.set_yticks([])
    caption = "\n".join(textwrap.wrap(phrase.phrase, CAPTION_WIDTH)[:3])
    axes.set_title(f"{caption}\n{phrase.share:.0%} of the attention in the box", fontsize=9)

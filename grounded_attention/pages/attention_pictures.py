# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pictures of an image with the attention of words or phrases on its regions, or on its patches. R regions."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from PIL import Image

from grounded_attention.processing.image_layouts import ImageFrame
from grounded_attention.utils.named_types import Corners, Fields, Size

from .colours import BLUE, GREY, HIT, MISS, VERMILLION, scale_colours
from .figure_style import DPI, WIDTH, panels, save
from .overlay import UNSEEN, attention_overlay, colour_places

ATTENDED = VERMILLION
GOLD = BLUE
GOLD_LINE: Fields = {"lw": 1.8, "ls": (0, (4, 2.2))}
# of a picture: pixels, and its height in widths
WIDEST = 500
TALLEST = 1.25
# of captions: pixels of a letter, inches of a line
LETTER = 7.2
LINE = 0.2


@dataclass(frozen=True, eq=False)
class WordAttention:
    """The attention of one word or phrase on the regions of its image, without the whole-image region."""

    word: str
    boxes: np.ndarray
    weights: np.ndarray
    gold: np.ndarray

    def __post_init__(self):
        for name, dtype in (("boxes", np.float64), ("weights", np.float64), ("gold", bool)):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=dtype))

    @property
    def top(self) -> int:
        """Index of the most-attended region."""
        return int(self.weights.argmax())


@dataclass(frozen=True, eq=False)
class PatchAttention:
    """The attention of a phrase on the patches of an image, its own or that of the figure; `top` is the lightest."""

    phrase: str
    map: np.ndarray
    frame: Corners
    box: Corners | None
    share: float
    image: Image.Image | None = None
    top: float | None = None
    of: str = " in the box"


def attention_figure(
    image: Image.Image,
    caption: str,
    words: Sequence[WordAttention],
    path: str | Path,
    notes: Sequence[str] = (),
) -> Figure:
    """Draws one panel per word, below the caption: the image with the attention of the word."""
    columns = max(1, min(len(words), 2 if len(words) <= 4 else 3))
    rows = [words[i : i + columns] for i in range(0, len(words), columns)]
    return save(_draw_rows(image, caption, rows, (), notes), path)


def method_comparison_figure(
    image: Image.Image,
    caption: str,
    word_by_method: Mapping[str, Sequence[WordAttention]],
    path: str | Path,
) -> Figure:
    """Draws the same words for several methods: one row per method, one column per word, one scale."""
    return save(_draw_rows(image, caption, [*word_by_method.values()], [*word_by_method]), path)


def patch_figure(
    image: Image.Image,
    phrases: Sequence[PatchAttention],
    path: str | Path | None = None,
    what: str = "attention",
    across: int = 3,
    note: str = "",
) -> Figure:
    """Draws one panel for each phrase: the image, coloured by `what` of the phrase its cells have, and the box."""
    across = min(len(phrases), across)
    figure, grid = _panels(len(phrases), across, _size(image, across), 4 * LINE)
    for axes, phrase in zip(grid, phrases, strict=True):
        own = phrase.image or image
        cells = ImageFrame(1, 1, phrase.frame).grid(*phrase.map.shape)
        weights = phrase.map.ravel()
        _draw_image(axes, own, _size(own, across), cells, weights, phrase.top or float(weights.max()))
        if phrase.box is not None:
            _draw_box(axes, phrase.box, 2.0, ec=ATTENDED, lw=2.5)
        caption = _wrapped(phrase.phrase, figure, across).splitlines()[:3]
        axes.set_title("\n".join([*caption, f"{phrase.share:.0%} of the {what}{phrase.of}"]), fontsize=9)
    legend = f"lighter: more {what}, from none to the most of the word; {UNSEEN}{note}"
    figure.supxlabel(_wrapped(legend, figure), fontsize=9)
    if path is None:
        return figure
    return save(figure, path)


# A sheet of panels


def _size(image: Image.Image, across: int) -> Size:
    """Width and height in pixels of a picture of which so many stand side by side."""
    widest = min(WIDEST, WIDTH / across) - 24
    scale = min(widest / image.width, TALLEST * widest / image.height)
    return max(4, round(image.width * scale)), max(4, round(image.height * scale))


def _panels(count: int, across: int, size: Size, more: float) -> tuple[Figure, list[Axes]]:
    """Panels for pictures of a size in pixels; `more` inches are for what stands around those of a row."""
    rows = -(-count // across)
    return panels(count, across, (min(WIDEST * across, WIDTH) / DPI, rows * (size[1] / DPI + more) + 0.8))


def _wrapped(text: str, figure: Figure, across: int = 1) -> str:
    letters = int(figure.get_figwidth() * DPI / across / LETTER)
    return "\n".join(textwrap.fill(line, letters) for line in text.splitlines())


def _draw_rows(
    image: Image.Image,
    caption: str,
    rows: Sequence[Sequence[WordAttention]],
    labels: Sequence[str],
    notes: Sequence[str] = (),
) -> Figure:
    """Draws a grid of panels, each with its word above it."""
    words = [word for row in rows for word in row]
    judged = any(word.gold.any() for word in words)
    across = len(rows[0])
    size = _size(image, across)
    figure, grid = _panels(len(words), across, size, LINE * (2 + judged + len(notes)))
    for axes, word in zip(grid, words, strict=True):
        _draw_word(axes, image, size, word)
        axes.set_title(_wrapped(word.word, figure, across), weight="bold", fontsize=9)
        if judged:
            verdict, colour = _verdict(word)
            axes.set_xlabel(verdict, color=colour, weight="bold", fontsize=9, loc="left")
    for axes, label in zip(grid[::across], labels, strict=False):
        axes.set_ylabel(label, weight="bold", fontsize=10)
    _draw_legend(figure, judged)
    lines = [caption, *(f"warning: {note}" for note in notes)]
    figure.suptitle("\n".join(_wrapped(line, figure) for line in lines), fontsize=9)
    return figure


def _draw_legend(figure: Figure, judged: bool) -> None:
    handles: list[Any] = []
    for weight in (0.1, 0.5, 1.0):
        colour = tuple(scale_colours(colour_places(weight)) / 255)
        handles.append(Patch(fc=colour, ec=ATTENDED, lw=_line_width(weight), label=f"{weight:.0%}"))
    handles[0].set_label("attention 10%")
    if judged:
        handles.append(Line2D([], [], color=GOLD, label="gold", **GOLD_LINE))
    handles.append(Patch(fc="white", ec=GREY, hatch="////", lw=0, label="no region"))
    figure.legend(handles=handles, loc="outside lower left", ncols=6, frameon=False, fontsize=8.5, columnspacing=1.0)


# One picture, in axes with corners (0, 0) and (1, 1)


def _draw_image(
    axes: Axes, image: Image.Image, size: Size, boxes: np.ndarray, weights: np.ndarray, top: float = 1.0
) -> None:
    overlay = attention_overlay(image, boxes, weights, size, top)
    axes.imshow(np.asarray(overlay), extent=(0, 1, 1, 0), aspect="auto")
    axes.set(xticks=[], yticks=[], frame_on=False, box_aspect=size[1] / size[0])


def _draw_box(axes: Axes, box: Any, halo: float, **style: Any) -> None:
    x1, y1, x2, y2 = box
    drawn = Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, clip_on=False, **style)
    if halo:  # visible also on an object of the same colour
        drawn.set_path_effects([withStroke(linewidth=style["lw"] + halo, foreground="white")])
    axes.add_patch(drawn)


def _draw_word(axes: Axes, image: Image.Image, size: Size, word: WordAttention) -> None:
    """Draws faint outlines, over them those of the attention, unless the share is below 2%, then the gold boxes."""
    _draw_image(axes, image, size, word.boxes, word.weights)
    for region in np.argsort(word.weights, kind="stable"):
        box = word.boxes[region]
        weight = float(word.weights[region])
        _draw_box(axes, box, 1.4, ec=GREY, lw=0.8, alpha=0.75)
        if region == word.top:
            _draw_box(axes, box, 1.6, ec=ATTENDED, lw=_line_width(weight))
        elif weight >= 0.02:
            _draw_box(axes, box, 0, ec=ATTENDED, lw=_line_width(weight), alpha=0.3 + 0.7 * weight)
    outside = 4 / np.array([-size[0], -size[1], size[0], size[1]])  # four pixels, so that both are visible
    for box in word.boxes[word.gold]:
        _draw_box(axes, box + outside, 1.6, ec=GOLD, **GOLD_LINE)
    _draw_share(axes, word.boxes[word.top], f"{word.weights[word.top]:.0%}", size)


def _line_width(weight: float) -> float:
    return 1.2 + 2.6 * weight


def _draw_share(axes: Axes, box: np.ndarray, share: str, size: Size) -> None:
    """Draws the share above the box; inside it at the upper edge of the image."""
    width, height = size
    x = float(np.clip(box[0], 4 / width, 1 - 46 / width))
    y = max(float(box[1]), 26 / height) - 9 / height
    label = {"boxstyle": "square,pad=0.2", "fc": ATTENDED, "ec": "white", "lw": 0.8}
    axes.text(x, y, share, va="bottom", color="white", fontsize=9, weight="bold", bbox=label)


def _verdict(word: WordAttention) -> tuple[str, str]:
    if not word.gold.any():
        return "– no gold region", GREY
    share = f"{word.weights[word.gold].sum():.0%} on gold"
    if word.gold[word.top]:
        return (f"✓ hit, {share}", HIT)
    return (f"✗ miss, {share}", MISS)

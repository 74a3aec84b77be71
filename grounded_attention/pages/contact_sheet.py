# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A contact sheet of labelled captions: pictures in a grid, the boxes of each phrase in its colour."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from PIL import Image

from .colours import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION
from .figure_style import DPI, WIDTH, save

# In this order; a sixth phrase has the first colour again, so boxes also have the number of their phrase.
COLOURS = (VERMILLION, BLUE, GREEN, PURPLE, ORANGE, SKY)
COLUMNS = 3
# Pixels.
MARGIN, GAP, LINE, HIGHEST = 12, 16, 15, 240
TEXT_SIZE = 8
LETTERS = 42  # of a line below a picture


@dataclass(frozen=True, eq=False)
class Labelled:
    """A picture and the labels of its caption."""

    title: str
    caption: str
    image: Image.Image
    phrases: Sequence[Mapping[str, Any]]

    def lines(self) -> list[tuple[str, str]]:
        """The lines below the picture with their colours."""
        made = [(line, "black") for line in textwrap.wrap(f"{self.title}: {self.caption}", LETTERS)]
        for number, phrase in enumerate(self.phrases):
            scores = ", ".join(f"{score:.2f}" for score in phrase["scores"]) or "no box"
            for line in textwrap.wrap(f"{number + 1} {phrase['text']}: {scores}", LETTERS):
                made.append((line, COLOURS[number % len(COLOURS)] if phrase["boxes"] else GREY))
        return made


def contact_sheet(items: Sequence[Labelled], path: str | Path) -> None:
    """Draws a contact sheet."""
    column = (WIDTH - 2 * MARGIN - (COLUMNS - 1) * GAP) / COLUMNS
    rows = [items[start : start + COLUMNS] for start in range(0, len(items), COLUMNS)]
    heights = [max(_height(item, column) + LINE * len(item.lines()) for item in row) + GAP for row in rows]
    height = sum(heights) + 2 * MARGIN
    figure = Figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI)
    top = float(MARGIN)
    for row, tall in zip(rows, heights, strict=True):
        for place, item in enumerate(row):
            _draw(figure, item, MARGIN + place * (column + GAP), top, column, height)
        top += tall
    save(figure, path)


def _height(item: Labelled, column: float) -> float:
    """The height of the picture; a tall picture is narrower than its column."""
    return min(HIGHEST, column * item.image.height / item.image.width)


def _draw(figure: Figure, item: Labelled, left: float, top: float, column: float, height: float) -> None:
    tall = _height(item, column)
    wide = tall * item.image.width / item.image.height
    axes = figure.add_axes((left / WIDTH, 1 - (top + tall) / height, wide / WIDTH, tall / height))
    axes.imshow(item.image, aspect="auto", extent=(0, 1, 1, 0))
    axes.set_axis_off()
    drawn: list[Sequence[float]] = []
    for number, phrase in enumerate(item.phrases):
        for box in phrase["boxes"]:
            _draw_box(axes, box, number, drawn.count(box))
            drawn.append(box)
    for place, (line, colour) in enumerate(item.lines()):
        y = top + tall + 4 + LINE * place
        figure.text(left / WIDTH, 1 - y / height, line, color=colour, fontsize=TEXT_SIZE, va="top")


def _draw_box(axes: Axes, box: Sequence[float], number: int, before: int) -> None:
    """Draws a box; over one that `before` phrases have too, with dashes, and its number beside theirs."""
    colour = COLOURS[number % len(COLOURS)]
    halo = [withStroke(linewidth=3, foreground="white")]
    x1, y1, x2, y2 = box
    line: dict[str, Any] = {"ls": (0, (3, 3))} if before else {"path_effects": halo}
    axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, lw=1.6, ec=colour, **line))
    style: dict[str, Any] = {"color": colour, "fontsize": TEXT_SIZE, "fontweight": "bold", "path_effects": halo}
    axes.text(x1 + 0.01 + 0.05 * before, y1 + 0.01, str(number + 1), va="top", clip_on=True, **style)

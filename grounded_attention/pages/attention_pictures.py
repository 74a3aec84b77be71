# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pictures of images with region boxes and the attention of words on them. Shape letter: R regions."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Affine2D, Transform
from PIL import Image

from .colours import BLUE, GREY, HIT, MISS, VERMILLION, YELLOW, scale_colours
from .figure_style import DPI, WIDTH, save
from .overlay import attention_overlay, colour_places

ATTENDED, GOLD, MARKED = VERMILLION, BLUE, YELLOW
GOLD_LINE: dict[str, Any] = {"lw": 1.8, "ls": (0, (4, 2.2))}

# Pixels.
MARGIN, GAP, CAPTION_LINE, CAPTION_GAP, VERDICT, LEGEND, TITLE, ROW_LABEL = 12, 18, 17, 8, 24, 30, 32, 26
NARROWEST, WIDEST, WIDEST_OF_MANY = 180, 476, 290
LEGEND_WIDTH = 500


@dataclass(frozen=True, eq=False)
class WordAttention:
    """The attention of one word or phrase on the regions of its image, without the whole-image region."""

    word: str
    span: tuple[int, int]
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


def attention_figure(
    image: Image.Image,
    caption: str,
    words: Sequence[WordAttention],
    path: str | Path,
    title: str | None = None,
    notes: Sequence[str] = (),
) -> Figure:
    """Draws one panel per word: the caption with the word marked, and the image with the attention of the word."""
    columns = max(1, min(len(words), 2 if len(words) <= 4 else 3))
    rows = [words[i : i + columns] for i in range(0, len(words), columns)]
    return save(_draw_sheet(image, caption, rows, None, title, notes), path)


def method_comparison_figure(
    image: Image.Image,
    caption: str,
    word_by_method: Mapping[str, Sequence[WordAttention]],
    path: str | Path,
    title: str | None = None,
) -> Figure:
    """Draws the same words for several methods: one row per method, one column per word, one scale."""
    return save(_draw_sheet(image, caption, [*word_by_method.values()], [*word_by_method], title), path)


# The sheet: panels have positions in pixels, so that text never overlaps an image


class _Sheet:
    """A figure with positions in pixels from the top left corner."""

    def __init__(self, width: float, height: float):
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        self.pixels: Transform = Affine2D().scale(1 / width, -1 / height).translate(0, 1) + self.figure.transFigure

    def text(self, x: float, y: float, text: str, **style: Any) -> None:
        defaults: dict[str, Any] = {"fontsize": 9, "va": "center"}
        self.figure.text(x, y, text, transform=self.pixels, parse_math=False, **defaults | style)

    def picture(self, x: float, y: float, image: Image.Image) -> Axes:
        """Draws the image without scaling, in axes with corners (0, 0) and (1, 1)."""
        width, height = image.size
        place = (x / self.width, 1 - (y + height) / self.height, width / self.width, height / self.height)
        axes = self.figure.add_axes(place, xticks=[], yticks=[], frame_on=False)
        axes.imshow(np.asarray(image), extent=(0, 1, 1, 0), aspect="auto", interpolation="nearest")
        return axes


def _draw_sheet(
    image: Image.Image,
    caption: str,
    rows: Sequence[Sequence[WordAttention]],
    labels: Sequence[str] | None,
    title: str | None,
    notes: Sequence[str] = (),
) -> Figure:
    """Draws a grid of panels; with row labels only the first row has captions."""
    words = [word for row in rows for word in row]
    judged = any(word.gold.any() for word in words)
    caption = re.sub(r"\s", " ", caption)
    left, columns = MARGIN + (ROW_LABEL if labels else 0), len(rows[0])
    width = _panel_width(columns, WIDTH - left - MARGIN, WIDEST_OF_MANY if labels else WIDEST)
    image = _resized(image, width)
    head = CAPTION_GAP + CAPTION_LINE * max(len(_caption_lines(caption, word.span, width)) for word in words)
    captioned = np.array([not labels or i == 0 for i in range(len(rows))])
    tops = MARGIN + (TITLE if title else 0) + captioned.cumsum() * head
    tops = tops + np.arange(len(rows)) * (image.height + VERDICT + GAP)
    sheet_width = max(left + columns * (width + GAP) - GAP + MARGIN, LEGEND_WIDTH)
    lines = [line for note in notes for line in _note_lines(f"warning: {note}", sheet_width - 2 * MARGIN)]
    sheet = _Sheet(sheet_width, tops[-1] + image.height + VERDICT + LEGEND + CAPTION_LINE * len(lines))
    for i, row in enumerate(rows):
        for j, word in enumerate(row):
            x = left + j * (width + GAP)
            if captioned[i]:
                _draw_caption(sheet, x, tops[i] - CAPTION_GAP, width, caption, word.span)
            _draw_panel(sheet, x + (width - image.width) // 2, tops[i], image, word, judged)
    _draw_labels(sheet, tops + image.height / 2, labels or (), title)
    _draw_legend(sheet, CAPTION_LINE * len(lines), judged)
    for i, line in enumerate(lines):
        sheet.text(MARGIN, sheet.height - 8 - CAPTION_LINE * (len(lines) - i - 0.5) + 4, line, color=MISS)
    return sheet.figure


def _note_lines(note: str, width: float) -> list[str]:
    return [note[start:end].strip() for start, end in _caption_lines(note, (0, 0), width)]


def _panel_width(columns: int, room: int, widest: int) -> int:
    return int(np.clip((room - (columns - 1) * GAP) // columns, NARROWEST, widest))


def _resized(image: Image.Image, width: int) -> Image.Image:
    """Scales an image to fit into (width, 1.25 width). Enlarging repeats whole pixels first to keep edges sharp."""
    scale = min(width / image.width, 1.25 * width / image.height)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    if scale <= 1:
        return image.resize(size, Image.Resampling.LANCZOS).convert("RGB")
    image = image.convert("RGB")
    times = math.ceil(scale)
    enlarged = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    return enlarged.resize(size, Image.Resampling.BOX)


def _draw_labels(sheet: _Sheet, middles: Iterable[float], labels: Sequence[str], title: str | None) -> None:
    if title:
        sheet.text(MARGIN, MARGIN + 8, title, fontsize=12, weight="bold")
    for middle, label in zip(middles, labels, strict=False):
        sheet.text(MARGIN + 8, middle, label, rotation=90, ha="center", weight="bold", fontsize=10)


def _draw_legend(sheet: _Sheet, room: float, judged: bool) -> None:
    """Draws the legend at the bottom of the sheet, with room for notes below it."""

    def attended(weight: float) -> Patch:
        colour = tuple(scale_colours(colour_places(weight)) / 255)
        return Patch(fc=colour, ec=ATTENDED, lw=_line_width(weight), label=f"{weight:.0%}")

    gold, other = Line2D([], [], color=GOLD, label="gold", **GOLD_LINE), Patch(fc="white", ec=GREY, hatch="////", lw=0)
    other.set_label("no region")
    sheet.text(MARGIN, sheet.height - room - 11, "attention:", fontsize=8.5, va="baseline")
    sheet.figure.legend(
        handles=[*map(attended, (0.1, 0.5, 1.0)), *([gold] if judged else []), other],
        loc="lower left",
        bbox_to_anchor=(MARGIN + 66, sheet.height - room - 8),
        bbox_transform=sheet.pixels,
        **{"ncols": 6, "frameon": False, "fontsize": 8.5, "borderpad": 0, "borderaxespad": 0},
        **{"handlelength": 2.2, "handletextpad": 0.4, "columnspacing": 1.0, "handleheight": 0.9},
    )


# The caption


def _advance(text: str, bold: bool) -> float:
    """Width of caption text in pixels, including spaces at its ends."""
    font, renderer = FontProperties(size=9, weight="bold" if bold else "normal"), RendererAgg(1, 1, DPI)
    with_bar, bar = (renderer.get_text_width_height_descent(t, font, ismath=False)[0] for t in (text + "|", "|"))
    return with_bar - bar


def _caption_lines(caption: str, span: tuple[int, int], width: float) -> list[tuple[int, int]]:
    """(start, end) of each line of the caption with a bold span. No line starts with punctuation."""
    lines: list[tuple[int, int]] = []
    start = end = 0
    for word in re.finditer(r"\S+(?:\s+[^\w\s]+(?!\S))*", caption):
        runs = _caption_runs(caption, (start, word.end()), span)
        if end > start and sum(_advance(*run) for run in runs) > width:
            lines.append((start, end))
            start = word.start()
        end = word.end()
    return [*lines, (start, end)]


def _caption_runs(caption: str, line: tuple[int, int], span: tuple[int, int]) -> Iterator[tuple[str, bool]]:
    """Yields pieces of a line, each with a flag whether it is in the span."""
    for marked, places in groupby(range(*line), key=lambda i: span[0] <= i < span[1]):
        yield "".join(caption[i] for i in places), marked


def _draw_caption(sheet: _Sheet, x: float, bottom: float, width: float, caption: str, span: tuple[int, int]) -> None:
    lines = _caption_lines(caption, span, width)
    for i, line in enumerate(lines):
        left, middle = x, bottom - (len(lines) - i - 0.5) * CAPTION_LINE
        for text, marked in _caption_runs(caption, line, span):
            advance = _advance(text, marked)
            if marked:
                spot = Rectangle((left - 1, middle - 8), advance + 2, 16, fc=MARKED, lw=0, transform=sheet.pixels)
                sheet.figure.add_artist(spot)
            sheet.text(left, middle + 4, text, weight="bold" if marked else "normal", va="baseline")
            left += advance


# One word's picture


def _draw_panel(sheet: _Sheet, x: float, y: float, image: Image.Image, word: WordAttention, judged: bool) -> None:
    axes = sheet.picture(x, y, attention_overlay(image, word.boxes, word.weights, image.size))
    for region in np.argsort(word.weights, kind="stable"):
        _draw_region(axes, word, int(region))
    for box in word.boxes[word.gold]:
        _draw_gold(axes, box, image.size)
    _draw_share(axes, word.boxes[word.top], f"{word.weights[word.top]:.0%}", image.size)
    if not judged:
        return
    verdict, colour = _verdict(word)
    sheet.text(x, y + image.height + VERDICT / 2 + 2, verdict, color=colour, weight="bold")


def _draw_region(axes: Axes, word: WordAttention, region: int) -> None:
    """Draws a faint outline, and over it one of the attention, unless the share is below 2%."""
    weight, (x1, y1, x2, y2) = float(word.weights[region]), word.boxes[region]
    size = x2 - x1, y2 - y1
    halo = [withStroke(linewidth=2.2, foreground="white", alpha=0.5)]
    axes.add_patch(Rectangle((x1, y1), *size, fill=False, ec=GREY, lw=0.8, alpha=0.75, path_effects=halo))
    top = region == word.top
    if top or weight >= 0.02:
        alpha = 1.0 if top else 0.3 + 0.7 * weight
        edge = Rectangle((x1, y1), *size, fill=False, ec=ATTENDED, lw=_line_width(weight), alpha=alpha)
        if top:  # visible also on an object of the same colour
            edge.set_path_effects([withStroke(linewidth=_line_width(weight) + 1.6, foreground="white")])
        axes.add_patch(edge)


def _line_width(weight: float) -> float:
    return 1.2 + 2.6 * weight


def _draw_gold(axes: Axes, box: np.ndarray, size: tuple[int, int]) -> None:
    """Draws a dashed box four pixels outside the outline of the region, so that both are visible."""
    (x1, y1), (x2, y2) = box[:2] - 4 / np.array(size), box[2:] + 4 / np.array(size)
    halo = [withStroke(linewidth=3.4, foreground="white")]
    outline = Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, ec=GOLD, path_effects=halo, **GOLD_LINE)
    axes.add_patch(outline).set_clip_on(False)


def _draw_share(axes: Axes, box: np.ndarray, share: str, size: tuple[int, int]) -> None:
    """Draws the share above the box; below or inside it near the edge of the image."""
    (x1, y1, _, y2), (width, height) = box, size
    room, gap = 26 / height, 9 / height
    if y1 >= room:
        y, va = y1 - gap, "bottom"
    else:
        y, va = (y2 if y2 + room <= 1 else y1) + gap, "top"
    x = float(np.clip(x1, 4 / width, 1 - 46 / width))
    label = {"boxstyle": "square,pad=0.2", "fc": ATTENDED, "ec": "white", "lw": 0.8}
    axes.text(x, y, share, va=va, color="white", fontsize=9, weight="bold", bbox=label)


def _verdict(word: WordAttention) -> tuple[str, str]:
    if not word.gold.any():
        return "– no gold region", GREY
    share = f"{word.weights[word.gold].sum():.0%} on gold"
    return (f"✓ hit, {share}", HIT) if word.gold[word.top] else (f"✗ miss, {share}", MISS)

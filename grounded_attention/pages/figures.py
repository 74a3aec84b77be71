# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Figures of head accuracy and training logs: input is NumPy and plain data, output one PNG, PDF or SVG.

The functions use neither pyplot nor torch, so they work in threads and without a display. They return the saved
figure, which a notebook shows. The same input gives the same bytes. Shape letters: L layers, H heads.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from grounded_attention.utils.named_types import Columns, Head

from .attention_pictures import WordAttention, attention_figure, method_comparison_figure
from .colours import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION
from .figure_style import DPI, WIDTH, panels, save

if TYPE_CHECKING:
    from grounded_attention.analysis.faithfulness import FaithfulCurves

__all__ = [
    "WordAttention",
    "attention_figure",
    "heads_figure",
    "loss_curves_figure",
    "method_comparison_figure",
]

HEADS = "text_to_region_by_head"  # key of an entry of the logs with an (L, H) accuracy
# Colour and line; methods without an entry have the others in turn.
METHODS = {"none": (GREY, ":"), "indirect": (SKY, "-."), "direct": (VERMILLION, "-"), "semi_direct": (GREEN, "--")}
OTHERS = [(colour, line) for line in (":", "-.", "-", "--") for colour in (ORANGE, BLUE, PURPLE, "black")]


def heads_figure(
    accuracy_by_method: Mapping[str, ArrayLike],
    chance: float | None,
    path: str | Path,
    layers: Sequence[str] | None = None,
    chosen: Mapping[str, Sequence[Head]] | None = None,
    title: str | None = None,
) -> Figure:
    """Draws one heat map per method, with layers on y and heads on x, counted from 0; one scale from 0 to 1.

    Heads of `chosen` have a frame; NaN is a head that was not measured.
    """
    arrays = {method: np.asarray(values, dtype=float) for method, values in accuracy_by_method.items()}
    depth = max(values.shape[0] for values in arrays.values())
    heads = max(values.shape[1] for values in arrays.values())
    columns = min(len(arrays), 4 if heads <= 4 else 2)
    figure, grid = _grid(len(arrays), columns, float(np.clip(0.8 * depth / heads, 0.4, 1.2)))
    for axes, (method, values) in zip(grid, arrays.items(), strict=True):
        _draw_heat_map(axes, method, values, (chosen or {}).get(method, ()))
        _name_layers(axes.yaxis, layers)
    for axes in grid[::columns]:
        axes.set_ylabel("layer")
    bar = figure.colorbar(ScalarMappable(Normalize(0, 1), "cividis"), ax=grid, label="accuracy", fraction=0.04)
    if chance is not None:
        bar.ax.axhline(chance, color="white", lw=3)
        bar.ax.axhline(chance, color="black", lw=1.2, ls="--")
    if title is None:
        framed = "; frame: chosen on validation" if chosen else ""
        title = f"Most-attended region is gold, by layer and head, from 0 (chance {chance:.2f}{framed})"
    figure.suptitle(title, fontsize=11)
    return save(figure, path)


def reliability_figure(probabilities: np.ndarray, positive: ArrayLike, path: str | Path) -> Figure:
    """Draws how often items are positive, against the mean of their probabilities (n,), in ten equal bins with n."""
    bins = np.minimum((probabilities * 10).astype(int), 9)
    counts = np.bincount(bins, minlength=10)
    filled = counts > 0
    said = np.bincount(bins, probabilities, minlength=10)[filled] / counts[filled]
    found = np.bincount(bins, np.asarray(positive, dtype=float), minlength=10)[filled] / counts[filled]
    figure, (axes,) = panels(1, 1, (WIDTH / DPI / 2, WIDTH / DPI / 2))
    axes.plot([0, 1], [0, 1], color=GREY, ls=":")
    axes.plot(said, found, color=VERMILLION, marker="o")
    for x, y, count in zip(said, found, counts[filled], strict=True):
        axes.annotate(f"n={count}", (x, y), xytext=(4, -10), textcoords="offset points", fontsize=8)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="probability", ylabel="part that is so")
    return save(figure, path)


def loss_curves_figure(histories: Mapping[str, Sequence[Columns]], path: str | Path) -> Figure:
    """Draws training logs: one panel per component, one line per method."""
    names = _components(histories)
    curves = {name: {m: curve for m, h in histories.items() if (curve := _curve(h, name))} for name in names}
    curves = {name: by_method for name, by_method in curves.items() if by_method}
    if not curves:
        raise ValueError(
            f"the logs of {list(histories)} contain none of {names or ['loss']}, so there is nothing to draw"
        )
    figure, grid = _grid(len(curves), min(len(curves), 3), 0.75)
    for axes, (name, by_method) in zip(grid, curves.items(), strict=True):
        _draw_curves(axes, name, by_method, histories)
    _legend_below(figure, *grid)
    return save(figure, path)


def faithful_figure(curves: "FaithfulCurves", path: str | Path) -> Figure:
    """Draws the deletion and the insertion curve of every map."""
    figure, grid = _grid(2, 2, 0.75)
    for way, axes in enumerate(grid):
        by_map = {}
        for name, values in zip(curves.maps, curves.curves[:, way].tolist(), strict=True):
            by_map[name] = dict(zip(curves.fractions.tolist(), values, strict=True))
        _draw_curves(axes, ("deletion", "insertion")[way], by_map, curves.maps)
        axes.set_xlabel(("share that is covered", "share that alone is shown")[way], fontsize=9)
    _legend_below(figure, *grid)
    return save(figure, path)


def _grid(count: int, columns: int, aspect: float) -> tuple[Figure, list[Axes]]:
    """A figure with a number of panels, each `aspect` times as high as wide, and room for a title and a legend."""
    rows = math.ceil(count / columns)
    width = (WIDTH if columns > 1 else 0.76 * WIDTH) / DPI
    return panels(count, columns, (width, rows * (width / columns * aspect + 0.45) + 0.6))


def _legend_below(figure: Figure, *grid: Axes) -> None:
    """One legend for all panels, each line once."""
    lines = {}
    for axes in reversed(grid):
        for line in reversed(axes.get_lines()):
            lines[line.get_label()] = line
    handles = list(lines.values())[::-1]
    columns = round(figure.get_figwidth() * DPI) // 120
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


# Heads and layers


def _name_layers(axis: Axis, layers: Sequence[str] | None) -> None:
    """Shows names in the place of the numbers of layers, if a layer has another name than its number."""
    if layers is not None and any(name != str(number) for number, name in enumerate(layers)):
        axis.set_ticks(range(len(layers)), list(layers))


def _draw_heat_map(axes: Axes, method: str, values: np.ndarray, chosen: Sequence[Head]) -> None:
    layers, heads = values.shape
    extent = (-0.5, heads - 0.5, -0.5, layers - 0.5)
    axes.set_facecolor("#DDDDDD")
    axes.imshow(values, cmap="cividis", vmin=0, vmax=1, origin="lower", extent=extent, aspect="auto")
    if np.isfinite(values).any():
        best = f", best {np.nanmax(values):.2f}"
    else:
        best = ""
    if len(chosen) == 1:
        best = f", chosen {values[chosen[0]]:.2f}"
    for layer, head in chosen:
        frame = Rectangle((head - 0.47, layer - 0.47), 0.94, 0.94, fill=False, ec=VERMILLION, lw=2.4)
        axes.add_patch(frame).set_path_effects([withStroke(linewidth=4.4, foreground="white")])
    axes.set_title(method + best, fontsize=10)
    axes.set_xlabel("head")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], nbins=12))
    if values.size <= 64:
        for (layer, head), value in np.ndenumerate(values):
            text = "–" if np.isnan(value) else f"{value:.2f}"
            colour = "black" if np.isnan(value) or value > 0.5 else "white"
            axes.text(head, layer, text, ha="center", va="center", color=colour, fontsize=8 if heads <= 8 else 7)


# Training logs


def _components(histories: Mapping[str, Sequence[Columns]]) -> list[str]:
    """The components of the logs to draw, each once: the loss, its parts by name, then evaluation by name."""
    names = sorted({name for history in histories.values() for record in history for name in record})
    losses = []
    for name in names:
        if name == "loss" or name.startswith("loss_"):
            losses.append(name)
    return losses + [name for name in names if name.startswith("eval_") and "accuracy" in name]


def _curve(history: Sequence[Columns], name: str) -> dict[int, float]:
    by_step = {}
    for record in history:
        if "step" in record and name in record:
            by_step[int(record["step"])] = record[name]
    return {step: float(by_step[step]) for step in sorted(by_step) if np.isfinite(by_step[step])}


def _draw_curves(axes: Axes, name: str, by_method: Mapping[str, Mapping[Any, float]], methods: Iterable[str]) -> None:
    others = [method for method in methods if method not in METHODS]
    for method, curve in by_method.items():
        colour, line = METHODS[method] if method in METHODS else OTHERS[others.index(method) % len(OTHERS)]
        marker = "o" if len(curve) <= 10 else None
        axes.plot(list(curve), list(curve.values()), color=colour, ls=line, lw=1.8, ms=4, marker=marker, label=method)
    values = [value for curve in by_method.values() for value in curve.values()]
    if name.startswith("eval_"):
        axes.set_ylim(0, 1.02)
    elif min(values) > 0 and max(values) > 20 * min(values):
        axes.set_yscale("log")
    axes.set_title(name.replace("_", " "), fontsize=10)
    axes.set_xlabel("step", fontsize=9)
    axes.set_xlim(left=0)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)

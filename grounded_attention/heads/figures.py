# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Figures of an audit: accuracy of every head by layer, for entities and relations, and changes by training.

They follow Figures 3 and 4 of "What Does BERT with Vision Look At?" (papers/visualbert_head_analysis.txt). A head that
gives more than a fifth of its attention to the regions is *active* and drawn large and dark; other heads are small and
light. Heads and layers have the names of the audit, counted from 0. The same input gives the same bytes. Shape
letters: L layers, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import ArrayLike

from grounded_attention.pages.colours import BLUE, GREY, MISS, SKY, VERMILLION
from grounded_attention.pages.figure_style import DPI, WIDTH, panels, save

from .statistics import ACTIVE_SHARE, ALL, RELATIONS

if TYPE_CHECKING:
    from .table import HeadCounts, HeadTable

SPREAD = 0.6  # the heads of a layer are spread over this share of the space between layers, so none hides another
ALPHA = 0.05
BASELINE = "most confident region"
BEST = "chosen head"
TYPES = (".png", ".pdf")
# The paper reports the ten most common relations.
MOST_PANELS = 10
_TITLES = {
    "text_to_region": "Entity grounding: the most-attended {region} is gold",
    "region_to_text": "From {region}s to words: the most-attended word refers to the {region}",
}


def grounding_panels_figure(
    counts: Mapping[str, HeadCounts],
    path: str | Path,
    *,
    layers: Sequence[str] | None = None,
    intervals: bool = False,
    baseline: str = BASELINE,
    chosen: Mapping[str, tuple[int, int]] | None = None,
    ring: str = BEST,
    title: str = "Syntactic grounding: for a relation w1 → w2, the word w2 looks at the region of w1",
) -> Figure:
    """Draws one point per head, by layer, with baseline and chance (Figures 3 and 4 of the paper).

    Each relation, phrase type or model has a panel, all on one scale; a single one is large and has no heading.
    """
    alone = len(counts) == 1
    across = min(len(counts), 3 if len(counts) != 4 else 2)
    down = math.ceil(len(counts) / across)
    figure, grid = panels(len(counts), across, (0.86 * WIDTH / DPI, 4.3) if alone else (WIDTH / DPI, 2.6 * down + 0.9))
    for axes, (name, panel) in zip(grid, counts.items(), strict=True):
        names = list(layers or map(str, range(len(panel.accuracy))))
        _draw_heads(axes, panel, names, panel.intervals() if intervals else None, (chosen or {}).get(name), not alone)
        axes.set_title("" if alone else f"{name} ({panel.total} items)", fontsize=10)
    top = max(axes.get_ylim()[1] for axes in grid)
    for place, axes in enumerate(grid):
        axes.set_ylim(0, top)
        axes.tick_params(labelleft=place % across == 0)
        axes.set_ylabel("" if place % across else "accuracy (%)")
    figure.suptitle(title, fontsize=11)
    _legend(figure, baseline, ring, intervals, columns=3 if intervals or alone else 5)
    return save(figure, path)


def changes_figure(
    before: HeadCounts,
    after: HeadCounts,
    path: str | Path,
    *,
    p: ArrayLike,
    layers: Sequence[str] | None = None,
    names: tuple[str, str] = ("before", "after"),
) -> Figure:
    """Draws the change of each head by layer and head, with a star where it is significant."""
    significant = np.asarray(p) <= ALPHA
    points = 100 * (after.accuracy - before.accuracy)
    count, heads = points.shape
    figure = Figure(figsize=(0.6 * WIDTH / DPI, max(3.6, 0.3 * count + 1.6)), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    limit = max(1.0, float(np.abs(points).max()))
    # As everywhere light is more: the direction of a change can be read in grey.
    image = axes.imshow(points, cmap="cividis", vmin=-limit, vmax=limit, origin="lower", aspect="auto")
    for layer, head in np.argwhere(significant):
        axes.plot(head, layer, marker="*", ms=8, color="black" if points[layer, head] > 0 else "white", mec="none")
    axes.set_yticks(range(count), layers or map(str, range(count)), fontsize=8)
    axes.set_xticks(range(heads), map(str, range(heads)), fontsize=8)
    axes.set(xlabel="head", ylabel="layer")
    label = f"← {names[0]} better      points      {names[1]} better →"
    figure.colorbar(image, ax=axes, fraction=0.05).set_label(label, fontsize=8)
    test = f"★ {significant.sum()} of {significant.size} heads significant (p ≤ {ALPHA:g})"
    figure.suptitle(f"Accuracy of each head: {names[1]} minus {names[0]}\n{test}", fontsize=11)
    return save(figure, path)


# Points


def _draw_heads(
    axes: Axes,
    counts: HeadCounts,
    names: Sequence[str],
    intervals: np.ndarray | None,
    ringed: tuple[int, int] | None,
    small: bool,
) -> None:
    accuracy = 100 * counts.accuracy
    lit = counts.mean_share > ACTIVE_SHARE
    layers, heads = accuracy.shape
    x = np.arange(layers)[:, None] + np.linspace(-SPREAD / 2, SPREAD / 2, heads if heads > 1 else 2)[:heads]
    if intervals is not None:
        low, high = 100 * intervals
        axes.vlines(x[lit], low[lit], high[lit], color=BLUE, lw=0.9, alpha=0.55, zorder=2)
    scale = 0.6 if small else 1.0
    axes.scatter(x[~lit], accuracy[~lit], s=16 * scale, color=SKY, lw=0, alpha=0.8, zorder=3)
    axes.scatter(x[lit], accuracy[lit], s=52 * scale, color=BLUE, ec="white", lw=0.7, zorder=4)
    axes.axhline(100 * counts.baseline_accuracy, color=GREY, lw=1.6, zorder=1)
    axes.axhline(100 * counts.chance_accuracy, color="black", lw=1.1, ls=(0, (2, 2)), zorder=1)
    if ringed is not None:
        _draw_ring(axes, float(x[ringed]), float(accuracy[ringed]), ringed, names, small)
    axes.set_xticks(range(layers), names, fontsize=8 if max(map(len, names)) > 2 else 9)
    if max(map(len, names)) > 2:
        axes.tick_params(axis="x", rotation=90)
    highest = max(accuracy.max(), 100 * counts.baseline_accuracy, 100 * counts.chance_accuracy)
    if intervals is not None:
        highest = max(highest, 100 * np.max(intervals))
    # With room for the name of the ringed head.
    axes.set(xlabel="layer", xlim=(-0.6, layers - 0.4), ylim=(0, max(5.0, 1.18 * highest)))
    axes.grid(axis="y", lw=0.4, color="#dddddd", zorder=0)
    axes.yaxis.set_major_locator(MaxNLocator(6))


def _draw_ring(axes: Axes, x: float, y: float, ringed: tuple[int, int], names: Sequence[str], small: bool) -> None:
    """Draws a ring around a head with its name and accuracy."""
    (layer, head), at = ringed, (x, y)
    axes.scatter(*at, s=70 if small else 120, facecolors="none", edgecolors=VERMILLION, lw=1.6, zorder=5)
    right = layer > (len(names) - 1) / 2
    axes.annotate(
        f"{names[layer]}-{head}: {y:.1f}",
        at,
        xytext=(-7 if right else 7, 5),
        textcoords="offset points",
        ha="right" if right else "left",
        fontsize=8 if small else 9,
        weight="bold",
        color=MISS,
        zorder=6,
    )


def _legend(figure: Figure, baseline: str, ring: str, intervals: bool, columns: int) -> None:
    def point(size: float, **style: Any) -> Line2D:
        return Line2D([], [], ls="", marker="o", ms=size, **style)

    handles = [
        point(7.5, mfc=BLUE, mec="white", label=f"active head (> {ACTIVE_SHARE:.0%} of attention)"),
        point(4.2, mfc=SKY, mec="none", label="other head"),
        point(9, mfc="none", mec=VERMILLION, mew=1.6, label=f"{ring} (layer-head)"),
        Line2D([], [], color=GREY, lw=1.6, label=baseline),
        Line2D([], [], color="black", lw=1.1, ls=(0, (2, 2)), label="chance"),
    ]
    if intervals:
        handles.append(Line2D([], [], ls="", marker="|", ms=11, color=BLUE, alpha=0.55, label="95% interval"))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


# Files


def plot_table(result: HeadTable, folder: Path) -> list[Path]:
    """Draws each direction by layer and head, the phrase types and the relations."""
    files: list[Path] = []
    for direction, groups in result.entities.items():
        known = {**panel_options(result, direction), "title": _TITLES[direction].format(region=result.region)}
        files += draw_files(grounding_panels_figure, folder / direction, {ALL: groups[ALL]}, intervals=True, **known)
        if types := most_common({name: of_type for name, of_type in groups.items() if name != ALL}):
            files += draw_files(grounding_panels_figure, folder / f"{direction}_types", types, **known)
    if result.relations:
        known = panel_options(result, RELATIONS)
        path = folder / "relations"
        files += draw_files(grounding_panels_figure, path, most_common(result.relations), **known)
    return files


def panel_options(result: HeadTable, kind: str) -> dict[str, Any]:
    """What `grounding_panels_figure` is told of a table, for one of the kinds of its counts."""
    chosen = result.choice.heads.get(kind, {})
    return {"layers": result.layers, "baseline": result.rule(kind), "chosen": chosen, "ring": result.choice.ring}


def draw_files(figure: Callable[..., Any], path: Path, *counts: Any, **options: Any) -> list[Path]:
    """Draws a figure as .png and .pdf; returns the files."""
    first, *others = [path.with_suffix(kind) for kind in TYPES]
    drawn = figure(*counts, first, **options)
    for file in others:
        save(drawn, file)
    return [first, *others]


def most_common(counts: Mapping[str, HeadCounts]) -> dict[str, HeadCounts]:
    """The groups with the most items, most first."""
    names = sorted(counts, key=lambda name: (-counts[name].total, name))[:MOST_PANELS]
    return {name: counts[name] for name in names}


# A grid of layers and heads


def ranking_figure(
    table: HeadTable,
    heads: Sequence[tuple[int, int]],
    path: str | Path,
    effects: Sequence[Sequence[float]] | None = None,
) -> Figure:
    """Draws pointing accuracy and share of attention on the image of every head; the chosen heads have a frame."""
    counts = table.counts
    height = min(max(2.6, 1.6 + 0.17 * len(table.layers)), 12.0)
    figure = Figure(figsize=(WIDTH / DPI, height), dpi=DPI, layout="constrained")
    panels = figure.subplots(1, 2 if effects is None else 3)
    titles = (f"pointing game (chance {counts.chance_accuracy:.0%})", f"attention on the {table.region}s")
    for axes, values, title in zip(panels[:2], (counts.accuracy, counts.mean_share), titles, strict=True):
        shown = np.ma.masked_array(values, ~counts.seeing)
        drawn = axes.imshow(
            shown, cmap="cividis", vmin=0, vmax=max(float(values.max()), 1e-9), aspect="auto", origin="lower"
        )
        for layer, head in heads:
            frame = Rectangle((head - 0.5, layer - 0.5), 1, 1, fill=False, edgecolor=VERMILLION, linewidth=2)
            axes.add_patch(frame)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("head")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        figure.colorbar(drawn, ax=axes, format=PercentFormatter(1.0, decimals=0), pad=0.02)
    panels[0].set_ylabel("layer")
    if effects is not None:
        _draw_effects(panels[2], counts, heads, effects)
    return save(figure, path)


def _draw_effects(
    axes: Axes, counts: HeadCounts, heads: Sequence[tuple[int, int]], effects: Sequence[Sequence[float]]
) -> None:
    """Looks at it × matters: pointing of each head, and how far the words would move without it."""
    pairs = [(layer, head) for layer, layer_effects in enumerate(effects) for head in range(len(layer_effects))]
    for chosen, colour, size in ((False, GREY, 12), (True, VERMILLION, 34)):
        drawn = [pair for pair in pairs if (pair in heads) is chosen and counts.seeing[pair]]
        x = [counts.accuracy[pair] for pair in drawn]
        y = [effects[layer][head] for layer, head in drawn]
        axes.scatter(x, y, size, colour, linewidths=0)
        for pair, point in zip(drawn, zip(x, y, strict=True), strict=True) if chosen and len(heads) <= 4 else ():
            axes.annotate(f" {pair[0]}-{pair[1]}", point, fontsize=8)
    if any(map(any, effects)):  # an axis of zeros has no logarithm
        axes.set_yscale("log")
    axes.set_title("without the head (estimate)", fontsize=10)
    axes.set_xlabel("pointing game")
    axes.set_ylabel("size of the change, nats")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))

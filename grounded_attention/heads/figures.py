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
MOST_CHANGED = 12  # heads
BASELINE, BEST = "most confident region", "best active head"
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
        ringed = chosen.get(name) if chosen else _best(panel)
        _draw_heads(axes, panel, _names(panel, layers), panel.intervals() if intervals else None, ringed, not alone)
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
    p: ArrayLike | None = None,
    layers: Sequence[str] | None = None,
    names: tuple[str, str] = ("before", "after"),
    baseline: str = BASELINE,
) -> Figure:
    """Draws the change of each head by layer and head, and the most changed heads before and after."""
    significant = np.zeros(before.accuracy.shape, dtype=bool) if p is None else np.asarray(p) <= ALPHA
    labels = _names(before, layers)
    shown = min(MOST_CHANGED, before.accuracy.size)
    height = max(3.6, 0.27 * shown + 1.6, 0.3 * len(labels) + 1.6)
    figure = Figure(figsize=(WIDTH / DPI, height), dpi=DPI, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    _draw_differences(left, 100 * (after.accuracy - before.accuracy), significant, labels, names)
    _draw_dumbbells(right, before, after, significant, labels, names, shown)
    right.set_xlabel(f"accuracy (%); grey line: {baseline}", fontsize=8.5)
    test = "" if p is None else f"\n{significant.sum()} of {significant.size} heads significant (p ≤ {ALPHA:g})"
    figure.suptitle(f"Accuracy of each head: {names[1]} minus {names[0]}{test}", fontsize=11)
    return save(figure, path)


def _names(counts: HeadCounts, layers: Sequence[str] | None) -> list[str]:
    return [str(name) for name in (range(counts.accuracy.shape[0]) if layers is None else layers)]


# Points


def _draw_heads(
    axes: Axes,
    counts: HeadCounts,
    names: Sequence[str],
    intervals: np.ndarray | None,
    ringed: tuple[int, int] | None,
    small: bool,
) -> None:
    accuracy, lit = 100 * counts.accuracy, counts.mean_share > ACTIVE_SHARE
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
    axes.set(xlabel="layer", xlim=(-0.6, layers - 0.4), ylim=(0, _ceiling(counts, intervals)))
    axes.grid(axis="y", lw=0.4, color="#dddddd", zorder=0)
    axes.yaxis.set_major_locator(MaxNLocator(6))


def _ceiling(counts: HeadCounts, intervals: np.ndarray | None) -> float:
    """The upper limit of the y axis in percent, with room for the name of the best head."""
    highest = max(counts.accuracy.max(), counts.baseline_accuracy, counts.chance_accuracy)
    if intervals is not None:
        highest = max(highest, float(intervals.max()))
    return max(5.0, 118 * float(highest))


def _best(counts: HeadCounts) -> tuple[int, int] | None:
    """Layer and head of the best active head; None if no head is active."""
    accuracy = np.where(counts.mean_share > ACTIVE_SHARE, counts.accuracy, -1.0)
    return divmod(int(accuracy.argmax()), accuracy.shape[1]) if accuracy.max() >= 0 else None


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


# Changes


def _draw_differences(
    axes: Axes, points: np.ndarray, significant: np.ndarray, names: Sequence[str], models: tuple[str, str]
) -> None:
    layers, heads = points.shape
    limit = max(1.0, float(np.abs(points).max()))
    # As everywhere light is more: the direction of a change can be read in grey.
    image = axes.imshow(points, cmap="cividis", vmin=-limit, vmax=limit, origin="lower", aspect="auto")
    for layer, head in zip(*np.nonzero(significant), strict=True):
        axes.plot(head, layer, marker="*", ms=8, color="black" if points[layer, head] > 0 else "white", mec="none")
    axes.set_yticks(range(layers), names, fontsize=8)
    axes.set_xticks(range(heads), [str(head) for head in range(heads)], fontsize=8)
    axes.set(xlabel="head", ylabel="layer")
    axes.set_title("★ significant" if significant.any() else "by layer and head", fontsize=10)
    before, after = models
    label = f"← {before} better      points      {after} better →"
    axes.figure.colorbar(image, ax=axes, fraction=0.05).set_label(label, fontsize=8)


def _draw_dumbbells(
    axes: Axes,
    before: HeadCounts,
    after: HeadCounts,
    significant: np.ndarray,
    layers: Sequence[str],
    names: tuple[str, str],
    most: int,
) -> None:
    """Hollow points are before, filled points after; a significant head has a thick line and a bold name."""
    old, new = 100 * before.accuracy, 100 * after.accuracy
    order = np.argsort(-np.abs(new - old), axis=None, kind="stable")[:most]
    for place, (layer, head) in enumerate(zip(*np.unravel_index(order, old.shape), strict=True)):
        ends, sure = [old[layer, head], new[layer, head]], significant[layer, head]
        axes.plot(ends, [place] * 2, color=BLUE, lw=2.6 if sure else 1.1, zorder=2)
        axes.plot(ends[0], place, marker="o", ms=6, mfc="white", mec=BLUE, zorder=3)
        axes.plot(ends[1], place, marker="o", ms=6, color=BLUE, zorder=4)
    labels = [f"{layers[layer]}-{head}" for layer, head in zip(*np.unravel_index(order, old.shape), strict=True)]
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    for label, sure in zip(axes.get_yticklabels(), significant.flat[order], strict=True):
        label.set_fontweight("bold" if sure else "normal")
    axes.axvline(100 * before.baseline_accuracy, color=GREY, lw=1.6, zorder=1)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_title(f"most changed heads: ○ {names[0]}, ● {names[1]}", fontsize=10)
    axes.grid(axis="x", lw=0.4, color="#dddddd", zorder=0)


# Files


def plot_table(result: HeadTable, folder: Path) -> list[Path]:
    """Draws each direction by layer and head, the phrase types and the relations."""
    files: list[Path] = []
    for direction, groups in result.entities.items():
        known = {
            "title": _TITLES[direction].format(region=result.region),
            "layers": result.layers,
            "baseline": result.rule(direction),
            "chosen": result.choice.heads.get(direction, {}),
            "ring": result.choice.ring,
        }
        files += draw_files(grounding_panels_figure, folder / direction, {ALL: groups[ALL]}, intervals=True, **known)
        types = most_common({name: of_type for name, of_type in groups.items() if name != ALL})
        if types:
            files += draw_files(grounding_panels_figure, folder / f"{direction}_types", types, **known)
    if result.relations:
        files += draw_files(
            grounding_panels_figure,
            folder / "relations",
            most_common(result.relations),
            layers=result.layers,
            baseline=result.rule(RELATIONS),
            chosen=result.choice.heads.get(RELATIONS, {}),
            ring=result.choice.ring,
        )
    return files


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
        x, y = [counts.accuracy[pair] for pair in drawn], [effects[layer][head] for layer, head in drawn]
        axes.scatter(x, y, size, colour, linewidths=0)
        for pair, point in zip(drawn, zip(x, y, strict=True), strict=True) if chosen and len(heads) <= 4 else ():
            axes.annotate(f" {pair[0]}-{pair[1]}", point, fontsize=8)
    if any(map(any, effects)):  # an axis of zeros has no logarithm
        axes.set_yscale("log")
    axes.set_title("without the head (estimate)", fontsize=10)
    axes.set_xlabel("pointing game")
    axes.set_ylabel("size of the change, nats")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))

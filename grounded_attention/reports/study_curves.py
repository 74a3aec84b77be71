# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The learning curves of a study: scores over the number of training rows."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from .colours import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION
from .figure_style import DPI, WIDTH, panels, save

COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GREY, "black")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":")
PANELS_ACROSS = 2
SMALLEST_SPAN = 15  # percentage points of an axis: chance differences shall not look large


def learning_curves_figure(results: Mapping[str, Any], path: str | Path) -> Figure:
    """Draws one panel per learning curve, with a line for each row: the mean over seeds, and a band of all seeds."""
    curves = results["curves"]
    groups = results["groups"]
    wanted = [
        (f"{curve}\n{group}" if group else curve, labelled, points)
        for curve, points in curves.items()
        for group, labelled in (groups or {"": {row: row for row in results["rows"]}}).items()
    ]
    labels = {label for _, labelled, _ in wanted for label in labelled}
    across = len(groups) or min(len(curves), PANELS_ACROSS)
    down = math.ceil(len(wanted) / across)
    size = (WIDTH / DPI * (1 if across > 1 else 0.76), 3.4 * down + 0.08 * len(labels) + 0.4)
    figure, grid = panels(len(wanted), across, size, sharey="row" if groups else "none")
    for axes, (name, labelled, points) in zip(grid, wanted, strict=True):
        _panel(axes, results["figures"], labelled, points)
        axes.set_title(name, fontsize=10)
    for axes in grid:  # after all are drawn, since panels share axes
        low, high = axes.get_ylim()
        room = max(0.0, SMALLEST_SPAN - (high - low))
        below = min(room / 2, max(low, 0.0))  # no percentages below 0
        axes.set_ylim(low - below, high + room - below)
    lines = {line.get_label(): line for axes in grid for line in axes.get_lines()}
    columns = max(1, round(size[0] / 1.9))
    figure.legend(handles=list(lines.values()), loc="outside lower center", ncols=columns, fontsize=9, frameon=False)
    figure.suptitle("Mean over seeds, band from the lowest to the highest seed", fontsize=10)
    return save(figure, path)


def _panel(
    axes: Axes, numbers: Mapping[str, Any], labelled: Mapping[str, str], points: list[Mapping[str, Any]]
) -> None:
    for number, (label, row) in enumerate(labelled.items()):
        known = numbers.get(row, {})
        known_points = [(p["rows"], known[p["column"]]) for p in points if p["column"] in known]
        if not known_points:
            continue
        sizes = [rows for rows, _ in known_points]
        seeds = [[100 * value for value in number["seeds"].values()] for _, number in known_points]
        colour = COLOURS[number % len(COLOURS)]
        axes.fill_between(sizes, [min(s) for s in seeds], [max(s) for s in seeds], color=colour, alpha=0.13, lw=0)
        axes.plot(
            sizes,
            [100 * number["mean"] for _, number in known_points],
            color=colour,
            marker=MARKERS[number % len(MARKERS)],
            ls=LINES[number % len(LINES)],
            ms=5,
            lw=1.6,
            label=label,
        )
    axes.set_xscale("log")
    axes.set_xticks([point["rows"] for point in points], [f"{point['rows']:,}" for point in points], fontsize=8)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("training rows", fontsize=9)
    axes.set_ylabel("percent", fontsize=9)
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(lw=0.4, color="#dddddd")

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The figure of a perturbation test: one panel per map, accuracy against the share of removed regions."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grounded_attention.analysis.perturbation_curves import LEAST, MOST, RANDOM, PerturbationCurves

from .colours import BLUE, GREY, VERMILLION
from .figure_style import DPI, WIDTH, panels, save

NAMES = {
    "raw_last": "attention, last layer",
    "raw_mean": "attention, all layers",
    "rollout": "rollout",
    "relevancy": "gradient-weighted relevancy",
}
# Colour and line style have the same meaning.
_STYLES = {
    MOST: (VERMILLION, "-", "most relevant first"),
    LEAST: (BLUE, "--", "least relevant first"),
    RANDOM: (GREY, ":", "random order"),
}
_COLUMNS = 2


def perturbation_figure(curves: PerturbationCurves, path: str | Path, title: str = "") -> Figure:
    """Draws the curves of every map and of the random order; the legend shows the area of each curve."""
    maps = curves.maps
    columns = min(_COLUMNS, len(maps))
    rows = -(-len(maps) // columns)
    size = (WIDTH / DPI * columns / _COLUMNS, 2.9 * rows + 0.4)
    figure, grid = panels(len(maps), columns, size, sharex=True, sharey=True)
    for axes, name in zip(grid, maps, strict=True):
        _draw(axes, curves, name)
    figure.supxlabel("share of removed regions")
    figure.supylabel("accuracy")
    if title:
        figure.suptitle(title)
    return save(figure, path)


def _draw(axes: Axes, curves: PerturbationCurves, name: str) -> None:
    areas = dict(zip(curves.curves, curves.areas, strict=True))
    for order, (colour, style, name_of_order) in _STYLES.items():
        key = (RANDOM if order == RANDOM else name, order)
        label = f"{name_of_order}, area {areas[key]:.3f}"
        axes.plot(curves.fractions, curves.curve(*key), style, color=colour, lw=1.8, label=label)
    axes.set_title(NAMES.get(name, name), fontsize=11)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)

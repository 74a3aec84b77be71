# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The figure of a ranking: pointing accuracy of every head as a grid of layers and heads."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from grounded_attention.reports.figure_style import DPI, VERMILLION, WIDTH, save

if TYPE_CHECKING:
    from grounded_attention.heads.ranking import HeadRanking


def ranking_figure(ranking: "HeadRanking", path: str | Path) -> Figure:
    """Draws pointing accuracy and share of attention on the image of every head; the chosen heads have a frame."""
    report = ranking.reported_on
    height = min(max(2.6, 1.6 + 0.17 * report.layers), 12.0)
    figure = Figure(figsize=(WIDTH / DPI, height), dpi=DPI, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    pointing, share = report.mean("pointing"), report.mean("share")
    titles = (f"pointing game (chance {report.chance.mean():.0%})", "attention on the image")
    for axes, values, title in zip(panels, (pointing, share), titles, strict=True):
        shown = np.ma.masked_array(values, ~report.seeing)
        drawn = axes.imshow(shown, cmap="cividis", vmin=0, vmax=max(float(values.max()), 1e-9), aspect="auto")
        for layer, head in ranking.heads:
            frame = Rectangle((head - 0.5, layer - 0.5), 1, 1, fill=False, edgecolor=VERMILLION, linewidth=2)
            axes.add_patch(frame)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("head")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        figure.colorbar(drawn, ax=axes, format=PercentFormatter(1.0, decimals=0), pad=0.02)
    panels[0].set_ylabel("layer")
    return save(figure, path)

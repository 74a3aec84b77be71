# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The accuracy of every head at each measurement of a training, as one heat map for each method."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from .figure_style import DPI, WIDTH, panels, save

HEADS = "text_to_region_by_head"  # key of an entry of the logs with an (L, H) accuracy


def measured_heads(history: Sequence[Mapping[str, Any]]) -> dict[int, np.ndarray]:
    """Step -> (L, H) float in [0, 1]: the measurements in the logs of a training; of one step the last counts."""
    by_step = {int(entry["step"]): np.asarray(entry[HEADS], dtype=float) for entry in history if HEADS in entry}
    return dict(sorted(by_step.items()))


def heads_over_time_figure(
    measured: Mapping[str, Mapping[int, np.ndarray]], path: str | Path, layers: Sequence[str] | None = None
) -> Figure:
    """Draws one heat map for each method: steps on x, heads on y from the first layer at the bottom to the last."""
    shown = {name: steps for name, steps in measured.items() if steps}
    depth, heads = next(iter(next(iter(shown.values())).values())).shape
    columns = min(len(shown), 2)
    rows = -(-len(shown) // columns)
    height = rows * max(1.8, 0.14 * depth * heads) + 0.9
    figure, grid = panels(len(shown), columns, (WIDTH / DPI, height))
    for axes, (name, steps) in zip(grid, shown.items(), strict=True):
        values = np.stack([value.reshape(-1) for value in steps.values()], axis=1)  # (L * H, steps)
        axes.imshow(values, cmap="cividis", vmin=0, vmax=1, origin="lower", aspect="auto", interpolation="nearest")
        axes.set_title(f"{name}, best {np.nanmax(values[:, -1]):.2f} at step {list(steps)[-1]}", fontsize=10)
        every = max(1, len(steps) // 6)
        axes.set_xticks(range(0, len(steps), every), [str(step) for step in list(steps)[::every]], fontsize=8)
        names = layers if layers is not None else [str(layer) for layer in range(depth)]
        axes.set_yticks([heads * layer + (heads - 1) / 2 for layer in range(depth)], list(names), fontsize=8)
        for layer in range(1, depth):
            axes.axhline(heads * layer - 0.5, color="white", lw=1)
        axes.set(xlabel="step", ylabel="layer")
    figure.colorbar(ScalarMappable(Normalize(0, 1), "cividis"), ax=figure.axes, label="accuracy", fraction=0.04)
    figure.suptitle(
        "Most-attended region is gold, during the training (validation; heads of a layer from below)", fontsize=11
    )
    return save(figure, path)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Heat maps of what a table counted of each head, by layer and head, see `heads_figure`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from grounded_attention.pages.figures import heads_figure

from .card import NAMES
from .statistics import ALL, RELATIONS

if TYPE_CHECKING:
    from .table import HeadCounts, HeadTable

# The paper reports the ten most common relations.
MOST_PANELS = 10


def plot_table(result: HeadTable, folder: Path) -> list[Path]:
    """Draws each direction, the phrase types and the relations, a .png file each; returns the files."""
    files: list[Path] = []
    for kind, groups in result.counted.items():
        if ALL in groups:
            files.append(folder / f"{kind}.png")
            table_figure(result, kind, [ALL], files[-1])
        named = most_common(groups)
        if named:
            files.append(folder / (f"{kind}.png" if kind == RELATIONS else f"{kind}_types.png"))
            table_figure(result, kind, named, files[-1])
    return files


def table_figure(result: HeadTable, kind: str, groups: Sequence[str], path: str | Path) -> Figure:
    """Draws how often each head is right, one panel for each group, and for all phrases also its attention."""
    chosen = result.choice.heads.get(kind, {})
    panels: dict[str, np.ndarray] = {}
    frames = {}
    for group in groups:
        counts = result.counted[kind][group]
        title = f"{group} ({counts.total} items)"
        panels[title] = seen_accuracy(counts)
        if group in chosen:
            frames[title] = [chosen[group]]
    chance = None
    if list(groups) == [ALL]:
        chance = counts.chance_accuracy
        panels["attention on all candidates"] = counts.mean_share
    title = f"{NAMES[kind]}: right answers of each head, by layer and head (frame: {result.choice.ring})"
    return heads_figure(panels, chance, path, result.layers, frames, title)


def seen_accuracy(counts: HeadCounts) -> np.ndarray:
    """(L, H): how often each head is right; NaN for one that sees no candidate."""
    return np.where(counts.seeing, counts.accuracy, np.nan)


def most_common(counts: Mapping[str, HeadCounts]) -> list[str]:
    """The groups with the most items, most first, without that of all."""
    names = sorted(counts.keys() - {ALL}, key=lambda name: (-counts[name].total, name))
    return names[:MOST_PANELS]

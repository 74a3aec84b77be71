# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Points from maps of attention: the places above a part of the maximum, and where to look closer.

The rules are those of GUI-AIMA (arXiv 2511.00810) and GUI-Actor (2506.03143). Shape letters: Y and X rows and columns.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import fmean

import numpy as np
import torch

from grounded_attention.utils.components import label_components
from grounded_attention.utils.named_types import Size

Point = tuple[float, float]
# A crop has this part of the geometric mean of width and height, in whole tokens of 28 pixels.
CROP_SHARE = 560 / 2400
CROP_STEP = 28
WHOLE = (0.0, 0.0, 1.0, 1.0)


def map_points(
    cells: np.ndarray, frame: Sequence[float] = WHOLE, share: float = 0.3, score: str = "max"
) -> list[tuple[Point, float]]:
    """Finds the points of a map, the best first.

    Cells above a share of the maximum fall into components, whose neighbours share an edge. The point of a component
    is the mean of the middles of its cells, weighted by the map.

    Args:
        cells (`np.ndarray`): (Y, X), not negative.
        frame (`Sequence[float]`, *optional*): The part of the image that the cells cover: x1, y1, x2, y2 in [0, 1].
        share (`float`, *optional*, defaults to 0.3): The share of the maximum.
        score (`str`, *optional*, defaults to `"max"`): What orders components: their `"max"` (GUI-AIMA, V2P) or
            their `"mean"` (GUI-Actor).

    Returns:
        `list[tuple[Point, float]]`: (x, y) in [0, 1] of the image and score; empty for a map without attention.
    """
    values = np.asarray(cells, dtype=np.float64)
    above = values > share * values.max()
    labels = label_components(torch.from_numpy(above)[None], diagonal=False)[0].numpy()[above]
    _, first, component = np.unique(labels, return_index=True, return_inverse=True)
    weights = values[above]
    total = np.bincount(component, weights)
    if score == "max":
        scores = np.zeros(len(first))
        np.maximum.at(scores, component, weights)
    else:
        scores = total / np.bincount(component)
    down, across = np.nonzero(above)
    x1, y1, x2, y2 = frame
    x = x1 + np.bincount(component, weights * (across + 0.5)) / total / values.shape[1] * (x2 - x1)
    y = y1 + np.bincount(component, weights * (down + 0.5)) / total / values.shape[0] * (y2 - y1)
    order = np.lexsort([first, -scores])  # components with one score keep the order of reading
    return [((float(x[place]), float(y[place])), float(scores[place])) for place in order]


def zoom_box(size: Size, point: Point) -> tuple[int, int, int, int]:
    """The square around a point, x1, y1, x2, y2 in pixels, looked at again; unlike the authors', inside the image."""
    width, height = size
    side = CROP_STEP * math.floor(math.sqrt(width * height) * CROP_SHARE / CROP_STEP)
    side = min(max(side, CROP_STEP), width, height)
    starts = [min(max(int(at * edge) - side // 2, 0), edge - side) for at, edge in zip(point, size, strict=True)]
    return starts[0], starts[1], starts[0] + side, starts[1] + side


def is_hit(point: Point, boxes: np.ndarray, reach: Point = (0.0, 0.0)) -> bool:
    """Whether a point, or a rectangle that reaches so far from it to each side, touches one of the boxes (n, 4)."""
    x, y = point
    across, down = reach
    x1, y1, x2, y2 = np.reshape(boxes, (-1, 4)).T
    inside_x = (x1 <= x + across) & (x - across <= x2)
    inside_y = (y1 <= y + down) & (y - down <= y2)
    return bool((inside_x & inside_y).any())


def point_scores(hits: Sequence[Mapping[str, float]], groups: Sequence[Sequence[str]]) -> dict[str, dict[str, float]]:
    """Means of measures: `all` over samples, then of each group (a sample may be in several), and of the groups."""
    members: dict[str, list[Mapping[str, float]]] = {name: [] for name in sorted({*chain(*groups)})}
    for each, names in zip(hits, groups, strict=True):
        for name in names:
            members[name].append(each)
    group_means = {name: _means(rows) for name, rows in members.items()}
    means = {"all": _means(hits)} | group_means
    if group_means:
        means["mean of groups"] = _means([*group_means.values()])
    return means


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: fmean(row[key] for row in rows) for key in rows[0]}

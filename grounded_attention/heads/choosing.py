# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Which heads are the best: `top_heads` decides it for every table, ranking, recipe and map.

Shape letters: n phrases, L layers, H heads.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from grounded_attention.utils.named_types import Head
from grounded_attention.utils.plain_text import check_one_of

from . import RANKS

if TYPE_CHECKING:
    from .table import HeadCounts

# Localization Heads counts how often a head is among this many heads of lowest entropy (section 4.2).
LOWEST = 10


def top_heads(values: npt.ArrayLike, count: int | None = None, allowed: npt.ArrayLike | None = None) -> list[Head]:
    """The heads with the highest values, the best first.

    Args:
        values (array): (L, H) a score of each head; heads with NaN, which were not measured, are left out.
        count (`int`, *optional*): how many; all without it.
        allowed (array, *optional*): (L, H) bool, the heads that may be chosen.

    Returns:
        `list[tuple[int, int]]`: (layer, head), counted from 0; of equal values the lowest layer and head first.
    """
    scores = np.asarray(values, dtype=np.float64)
    possible = ~np.isnan(scores)
    if allowed is not None:
        possible &= np.asarray(allowed)
    places = np.flatnonzero(possible)
    order = places[np.argsort(-scores.ravel()[places], kind="stable")]
    return [divmod(place, scores.shape[1]) for place in order[:count].tolist()]


def choose_heads(
    counts: "HeadCounts",
    count: int,
    rank: str = "pointing",
    entropies: np.ndarray | None = None,
    real: np.ndarray | None = None,
) -> list[Head]:
    """Chooses the heads that ground best; `entropies` (n, L, H) are those of the phrases, for "localization"."""
    check_one_of(rank, RANKS, "rank=")
    if rank == "localization":
        if entropies is None:
            raise ValueError(f"rank={rank!r}: for image tokens only, whose maps have a spatial entropy")
        values = localization_frequency(counts.mean_share, entropies, real)
    else:
        values = np.asarray(counts.mean(rank))
    seeing = counts.seeing
    if not 1 <= count <= seeing.sum():
        raise ValueError(f"{count} heads cannot be chosen: the model has {seeing.sum()} heads that see the image")
    return top_heads(values, count, seeing)


def localization_frequency(share: np.ndarray, entropies: np.ndarray, real: np.ndarray | None = None) -> np.ndarray:
    """How often each head is among the ten of lowest spatial entropy, of the heads that look at the image.

    `share` (L, H) is the mean share, `entropies` (n, L, H) are those of the phrases, `real` (L, H) are the heads that
    the model has.
    """
    if real is None:
        real = np.ones(share.shape, dtype=bool)
    bend = elbow(share[real])
    passed = real & ((share > bend) | (share[real].min() == share[real].max()))
    times = np.zeros(share.shape)
    for entropy in entropies:
        for head in top_heads(-entropy, LOWEST, passed):
            times[head] += 1
    return np.where(passed, times / len(entropies), -1.0)


def elbow(values: np.ndarray) -> float:
    """The value at the elbow of the sorted values: the point farthest from the line between the two ends."""
    ordered = np.sort(values, axis=None)
    if ordered[0] == ordered[-1]:
        return float(ordered[0])
    steps = np.linspace(0.0, 1.0, len(ordered))
    heights = (ordered - ordered[0]) / (ordered[-1] - ordered[0])
    return float(ordered[int(np.abs(heights - steps).argmax())])

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The scores of every head for every phrase, and the choice of heads by them.

Shape letters: n phrases, I images, L layers, H heads, R image tokens.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grounded_attention.heads.maps import TokenGrid, spatial_entropy
from grounded_attention.heads.statistics import ratio_intervals

MEASURES = ("pointing", "lift", "share", "entropy")
# How heads are ranked: by a measure, or as Localization Heads does, without boxes.
RANKS = ("pointing", "lift", "localization")
# Localization Heads counts how often a head is among this many heads of lowest entropy (section 4.2).
LOWEST = 10


def phrase_scores(attention: Tensor, gold: Tensor, candidates: Tensor, grid: TokenGrid) -> dict[str, Tensor]:
    """Scores the heads of one layer for one phrase."""
    seen = attention * candidates
    share = seen.sum(-1)
    best = seen.argmax(-1)
    inside = (seen * gold).sum(-1) / share.clamp(min=torch.finfo(torch.float32).tiny)
    return {
        "pointing": (gold[best] & (share > 0)).float(),
        "lift": inside * candidates.sum() / (gold & candidates).sum(),
        "share": share,
        "entropy": spatial_entropy(grid.maps(seen)),
    }


@dataclass(frozen=True, eq=False)
class HeadScores:
    """The scores of all heads for the phrases of a split."""

    image_ids: tuple[str, ...]
    scores: dict[str, np.ndarray]
    chance: np.ndarray
    gold_sizes: np.ndarray
    skipped: int = 0
    headless: tuple[int, ...] = ()

    def mean(self, measure: str) -> np.ndarray:
        """(L, H) float64: the mean over all phrases."""
        return self.scores[measure].mean(0, dtype=np.float64)

    @cached_property
    def blind_layers(self) -> tuple[int, ...]:
        """Layers that see no image token in any phrase: without heads, or with windows that end before the image."""
        return tuple(np.flatnonzero(~self.seeing.any(1)).tolist())

    @cached_property
    def seeing(self) -> np.ndarray:
        """(L, H) bool: the heads that see an image token in any phrase; layers may have fewer heads than H."""
        return np.any(self.scores["share"] > 0, axis=0)

    @cached_property
    def _images(self) -> tuple[tuple[str, ...], np.ndarray]:
        """The I images, and the image of each phrase as an index."""
        names, index = np.unique(np.array(self.image_ids, dtype=object).astype(str), return_inverse=True)
        return tuple(names.tolist()), index

    def intervals(self, measure: str) -> np.ndarray:
        """(2, L, H): 95 % bootstrap intervals of the means over images; NaN for a single image."""
        values = self.scores[measure]
        return self.bootstrap(values.reshape(len(values), -1)).reshape(2, *values.shape[1:])

    def bootstrap(self, values: np.ndarray) -> np.ndarray:
        """(2, K): 95 % bootstrap intervals over images of the means of K columns of values (n, K)."""
        names, index = self._images
        sums = np.zeros((len(names), values.shape[1]))
        np.add.at(sums, index, values)
        return ratio_intervals(sums, np.bincount(index, minlength=len(names)))

    @property
    def layers(self) -> int:
        """L."""
        return self.scores["pointing"].shape[1]

    @property
    def heads(self) -> int:
        """H."""
        return self.scores["pointing"].shape[2]

    @property
    def mean_size(self) -> tuple[float, float]:
        """Mean width and height of the gold boxes."""
        width, height = self.gold_sizes.mean(0, dtype=np.float64)
        return float(width), float(height)

    @property
    def images(self) -> int:
        """Number of images."""
        return len(self._images[0])

    def summary(self) -> dict[str, Any]:
        """What `heads.json` has of a split: counts, chance, and the mean scores of all heads as lists (L, H)."""
        return {
            "phrases": len(self.image_ids),
            "images": self.images,
            "skipped": self.skipped,
            "chance": float(self.chance.mean()),
            "scores": {name: np.round(self.mean(name), 6).tolist() for name in MEASURES},
        }


def choose_heads(scores: HeadScores, count: int, rank: str = "pointing") -> list[tuple[int, int]]:
    """Chooses the heads that ground best."""
    if rank not in RANKS:
        raise ValueError(f"rank={rank!r} is unknown; expected one of {', '.join(RANKS)}")
    values = localization_frequency(scores) if rank == "localization" else scores.mean(rank)
    seeing = scores.seeing
    if not 1 <= count <= seeing.sum():
        raise ValueError(f"{count} heads cannot be chosen: the model has {seeing.sum()} heads that see the image")
    values = np.where(seeing, values, -np.inf)
    order = np.argsort(-values, axis=None, kind="stable")[:count]
    return [(int(layer), int(head)) for layer, head in zip(*np.unravel_index(order, values.shape), strict=True)]


def localization_frequency(scores: HeadScores) -> np.ndarray:
    """How often each head is among the ten of lowest spatial entropy, of the heads that look at the image."""
    share = scores.mean("share")
    real = np.setdiff1d(np.arange(len(share)), scores.headless)
    bend = elbow(share[real])
    passed = (share > bend) | (share[real].min() == share[real].max())
    passed[list(scores.headless)] = False
    entropy = np.where(passed, scores.scores["entropy"], np.inf).reshape(len(scores.image_ids), -1)
    lowest = np.argsort(entropy, axis=1, kind="stable")[:, : min(LOWEST, int(passed.sum()))]
    frequency = np.bincount(lowest.ravel(), minlength=entropy.shape[1]) / len(entropy)
    return np.where(passed, frequency.reshape(share.shape), -1.0)


def elbow(values: np.ndarray) -> float:
    """The value at the elbow of the sorted values: the point farthest from the line between the two ends."""
    ordered = np.sort(values, axis=None)
    if ordered[0] == ordered[-1]:
        return float(ordered[0])
    steps = np.linspace(0.0, 1.0, len(ordered))
    heights = (ordered - ordered[0]) / (ordered[-1] - ordered[0])
    return float(ordered[int(np.abs(heights - steps).argmax())])

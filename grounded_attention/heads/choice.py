# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Chooses the best heads and layers of an audit, and reports their accuracy.

The best of 144 heads is partly the best by chance, so its accuracy on the items of the choice is too high. Therefore
heads are chosen on one split and reported on another. `SAME_SPLIT` selects the way of the paper, one split for both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from grounded_attention.heads.head_counts import HeadCounts
from grounded_attention.heads.statistics import DRAWS, LEVEL, baseline_interval, bootstrap_intervals, ratio_intervals
from grounded_attention.metrics.intervals import Interval

# Li et al. (2020): heads are chosen on the items that they are reported on.
SAME_SPLIT = "same_split"

# Direction -> group -> what was counted.
Counted = Mapping[str, Mapping[str, HeadCounts]]


@dataclass(frozen=True)
class Choice:
    """The chosen heads and layers."""

    split: str
    heads: Mapping[str, Mapping[str, tuple[int, int]]]
    layers: Mapping[str, Mapping[str, int]]

    @property
    def ring(self) -> str:
        """What figures ring: the heads that tables name."""
        return "best head of these items" if self.split == SAME_SPLIT else f"head chosen on {self.split}"

    def to_dict(self) -> dict[str, Any]:
        """The content as JSON types; `from_dict` makes an equal choice."""
        heads = {name: {group: list(pair) for group, pair in found.items()} for name, found in self.heads.items()}
        return {"split": self.split, "heads": heads, "layers": {name: dict(v) for name, v in self.layers.items()}}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Choice":
        heads = {
            name: {group: (int(pair[0]), int(pair[1])) for group, pair in found.items()}
            for name, found in content["heads"].items()
        }
        return cls(content["split"], heads, {name: dict(found) for name, found in content["layers"].items()})


@dataclass(frozen=True)
class BestHead:
    """A chosen head and its scores on the reported split; all scores are in [0, 1]."""

    kind: str
    group: str
    layer: int
    head: int
    active: bool
    accuracy: float
    interval: Interval
    share: float
    baseline: float
    baseline_interval: Interval
    chance: float
    upper_bound: float | None
    items: int
    images: int


@dataclass(frozen=True)
class BestLayer:
    """A chosen layer and the mean accuracy of its heads on the reported split, in [0, 1]."""

    kind: str
    group: str
    layer: int
    accuracy: float
    interval: Interval


def choose(counted: Counted, split: str) -> Choice:
    """
    Chooses the best head and layer of each group.

    The best head is the most accurate active head (Table 2 of the paper), or the most accurate head if none is active;
    the first of equals. The best layer has the highest mean accuracy over all its heads.
    """
    heads = {name: {group: _best(counts) for group, counts in found.items()} for name, found in counted.items()}
    layers = {
        name: {group: int(counts.accuracy.mean(1).argmax()) for group, counts in found.items()}
        for name, found in counted.items()
    }
    return Choice(split, heads, layers)


def _best(counts: HeadCounts) -> tuple[int, int]:
    accuracy = np.where(counts.active, counts.accuracy, -1.0) if counts.active.any() else counts.accuracy
    layer, head = np.unravel_index(int(accuracy.argmax()), accuracy.shape)
    return int(layer), int(head)


def report_heads(counted: Counted, choice: Choice, level: float = LEVEL, draws: int = DRAWS) -> list[BestHead]:
    """
    The scores of the chosen heads; skips a group that the split of the choice did not have.
    """
    found = []
    for kind, groups in counted.items():
        for group, counts in groups.items():
            pair = choice.heads.get(kind, {}).get(group)
            if pair is not None:
                found.append(_report_head(kind, group, counts, pair, level, draws))
    return found


def _report_head(
    kind: str, group: str, counts: HeadCounts, pair: tuple[int, int], level: float, draws: int
) -> BestHead:
    low, high = bootstrap_intervals(_only(counts, pair), level, draws)[:, 0, 0]
    return BestHead(
        kind,
        group,
        *pair,
        bool(counts.active[pair]),
        float(counts.accuracy[pair]),
        (float(low), float(high)),
        float(counts.mean_share[pair]),
        counts.baseline_accuracy,
        baseline_interval(counts, level, draws),
        counts.chance_accuracy,
        counts.upper_bound,
        counts.total,
        len(counts.image_ids),
    )


def _only(counts: HeadCounts, pair: tuple[int, int]) -> HeadCounts:
    """The counts of one head."""
    layer, head = pair
    place = (slice(None), slice(layer, layer + 1), slice(head, head + 1))
    return HeadCounts(
        counts.image_ids, counts.items, counts.correct[place], counts.share[place], counts.baseline, counts.chance
    )


def report_layers(counted: Counted, choice: Choice, level: float = LEVEL, draws: int = DRAWS) -> list[BestLayer]:
    """
    The scores of the chosen layers; skips a group that the split of the choice did not have.
    """
    found = []
    for kind, groups in counted.items():
        for group, counts in groups.items():
            layer = choice.layers.get(kind, {}).get(group)
            if layer is not None:
                sums = counts.correct[:, layer].mean(1, keepdims=True)
                low, high = ratio_intervals(sums, counts.items, level, draws)[:, 0]
                mean = float(counts.accuracy[layer].mean())
                found.append(BestLayer(kind, group, layer, mean, (float(low), float(high))))
    return found

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Significance of the difference between two models, paired by seed and item, with a bootstrap over images.

Items of one image are not independent, so the bootstrap draws whole images. Seeds are the second source of variation:
each draw samples images and seeds with replacement, the same for both models.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .intervals import interval_text

LEVEL = 0.95
DRAWS = 2000
# With fewer seeds the interval has too little information about chance in training for a claim.
FEWEST_SEEDS = 5
_LEAST = 1e-12  # nothing to divide by gives 0


@dataclass(frozen=True)
class ItemScores:
    """Scores of one model for each seed, on the same items."""

    scores: npt.NDArray[np.float64]
    item_ids: tuple[str, ...]
    image_ids: tuple[str, ...]

    @classmethod
    def collect(cls, runs: Sequence[Mapping[str, Sequence]], score: str) -> "ItemScores":
        """Collects the scores of one evaluation per seed."""
        tables = [dict(zip(run["example_id"], run[score], strict=True)) for run in runs]
        images = dict(zip(runs[0]["example_id"], runs[0]["image_id"], strict=True))
        for number, table in enumerate(tables):
            if table.keys() != images.keys():
                raise ValueError(f"seed {number} and seed 0 have different items: {_difference(table, images)}")
        ids = tuple(sorted(images))
        values = np.array([[table[item] for item in ids] for table in tables], dtype=np.float64)
        return cls(values, ids, tuple(images[item] for item in ids))

    @property
    def mean(self) -> float:
        """Mean over seeds and items."""
        return float(self.scores.mean())


@dataclass(frozen=True)
class Estimate:
    """A mean or a ratio of sums, its interval (NaN for one image alone), and the number of items."""

    value: float
    low: float
    high: float
    count: int
    draws: npt.NDArray[np.float64] | None = field(default=None, repr=False, compare=False)

    @property
    def percent(self) -> str:
        """A share and its interval."""
        return f"{self.value:.1%} ({interval_text((self.low, self.high))})"

    def of(self, things: str) -> str:
        """A share as a headline has it: with its interval, and the number of what it is a share of."""
        return f"{self.percent} of {self.count:,} {things}"

    def change(self, before: "Estimate") -> "Estimate":
        """What is added to `before`; both draw alike, so the interval is paired where both have the same images."""
        low = high = float("nan")
        if self.draws is not None and before.draws is not None:
            low, high = _ends(self.draws - before.draws)
        return Estimate(self.value - before.value, low, high, self.count)


Estimates = dict[str, Estimate]  # name of a number -> its value and interval


def _ends(draws: npt.NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def estimate_ratio(
    parts: npt.ArrayLike, wholes: npt.ArrayLike | None, image_ids: Sequence[str], draws: int = DRAWS, seed: int = 0
) -> Estimate:
    """Sum of `parts` over sum of `wholes` (1 each), with its bootstrap interval over images; 0 where those are."""
    values = np.asarray(parts, dtype=np.float64)
    if wholes is None:
        sizes = np.ones_like(values)
    else:
        sizes = np.asarray(wholes, dtype=np.float64)
    if sizes.sum():
        value = float(values.sum() / sizes.sum())
    else:
        value = 0.0
    if len(set(image_ids)) < 2:
        return Estimate(value, float("nan"), float("nan"), len(values))
    means = _resampled_means(values[None], image_ids, draws, np.random.default_rng(seed), sizes)
    return Estimate(value, *_ends(means), len(values), means)


def estimate_statistic(statistic: Callable[[np.ndarray], float], image_ids: Sequence[str]) -> Estimate:
    """A statistic of items, which takes how often each of them counts (n,), with its bootstrap interval over images.
    All draw alike, so that [`Estimate.change`] is paired.
    """
    _, image = np.unique(image_ids, return_inverse=True)
    images = image.max() + 1
    rng = np.random.default_rng(0)
    values = np.empty(DRAWS)
    for draw in range(DRAWS):
        drawn = np.bincount(rng.integers(images, size=images), minlength=images)
        values[draw] = statistic(drawn[image]) if images > 1 else np.nan
    return Estimate(statistic(np.ones(len(image))), *_ends(values), len(image), values)


@dataclass(frozen=True)
class Difference:
    """The difference between two models."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def claimed(self) -> bool:
        """Whether the difference is significant: the interval does not contain 0, with at least five seeds."""
        return self.seeds >= FEWEST_SEEDS and (self.low > 0 or self.high < 0)


def paired_difference(model: ItemScores, other: ItemScores, draws: int = DRAWS, seed: int = 0) -> Difference:
    """
    Computes the mean difference of two models with its bootstrap interval, paired by seed and item, clustered by
    image.

    Args:
        model (`ItemScores`): scores of the model.
        other (`ItemScores`): scores of the other model, with the same seeds and items.
        draws (`int`, *optional*, defaults to `DRAWS`): number of samples of images and seeds.
        seed (`int`, *optional*, defaults to `0`): seed of the draws.

    Raises:
        ValueError: if the items or the numbers of seeds differ.
    """
    if model.item_ids != other.item_ids:
        difference = _difference(model.item_ids, other.item_ids)
        raise ValueError(f"the two models have scores of different items: {difference}")
    if len(model.scores) != len(other.scores):
        raise ValueError(
            f"the two models have {len(model.scores)} and {len(other.scores)} seeds; give the same seeds for both"
        )
    differences = model.scores - other.scores
    means = _resampled_means(differences, model.image_ids, draws, np.random.default_rng(seed))
    return Difference(float(differences.mean()), *_ends(means), len(differences))


def _resampled_means(
    values: npt.NDArray[np.float64],
    image_ids: Sequence[str],
    draws: int,
    rng: np.random.Generator,
    wholes: npt.NDArray[np.float64] | None = None,
) -> npt.NDArray[np.float64]:
    """The mean of values (S, n), or their ratio to `wholes` (n,), in each draw of seeds and images: (draws,)."""
    _, image = np.unique(np.asarray(image_ids), return_inverse=True)
    images = int(image.max()) + 1
    seeds = len(values)
    sums = np.stack([np.bincount(image, row, images) for row in values])  # (S, images)
    sizes = np.bincount(image, wholes, images)
    means = np.empty(draws)
    for draw in range(draws):
        drawn = np.bincount(rng.integers(images, size=images), minlength=images)
        rows = rng.integers(seeds, size=seeds)
        means[draw] = (sums[rows] @ drawn).mean() / max(sizes @ drawn, _LEAST)
    return means


def _difference(first, second) -> str:
    only_first = set(first) - set(second)
    only_second = set(second) - set(first)
    return f"{len(only_first)} are only in the first, {len(only_second)} only in the second"

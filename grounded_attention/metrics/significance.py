# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Is one model better than another: differences paired by seed and item, resampled by image.

Items of one image are not independent, so the bootstrap draws whole images, and seeds are the second source of chance:
each draw takes as many images and as many seeds, with replacement, for both models alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LEVEL = 0.95
DRAWS = 2000
# With fewer seeds the interval says too little about chance in training to claim anything.
FEWEST_SEEDS = 5


@dataclass(frozen=True)
class ItemScores:
    """Scores of one model, seed by seed, on the same items.

    Args:
        scores (`npt.NDArray[np.float64]`): (S, n) float, S seeds, n items.
        item_ids (`tuple[str, ...]`): names of the n items.
        image_ids (`tuple[str, ...]`): the image of each item.
    """

    scores: npt.NDArray[np.float64]
    item_ids: tuple[str, ...]
    image_ids: tuple[str, ...]

    @classmethod
    def collect(cls, runs: Sequence[Mapping[str, Sequence]], score: str) -> "ItemScores":
        """
        From the items of each seed's evaluation: mappings with `example_id`, `image_id` and the list named `score`.

        Raises:
            ValueError: seeds that were judged on different items.
        """
        tables = [dict(zip(run["example_id"], run[score], strict=True)) for run in runs]
        images = dict(zip(runs[0]["example_id"], runs[0]["image_id"], strict=True))
        for number, table in enumerate(tables):
            if table.keys() != images.keys():
                raise ValueError(f"seed {number} was judged on other items than seed 0: {_difference(table, images)}")
        ids = tuple(sorted(images))
        values = np.array([[table[item] for item in ids] for table in tables], dtype=np.float64)
        return cls(values, ids, tuple(images[item] for item in ids))

    @property
    def mean(self) -> float:
        """Mean over seeds and items."""
        return float(self.scores.mean())


@dataclass(frozen=True)
class Difference:
    """How much better a model is than another.

    Args:
        mean (`float`): of the differences over seeds and items.
        low (`float`): lower end of the interval.
        high (`float`): upper end.
        seeds (`int`): number of seeds.
    """

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def claimed(self) -> bool:
        """Whether the difference may be called one: an interval without 0, from five seeds on."""
        return self.seeds >= FEWEST_SEEDS and (self.low > 0 or self.high < 0)


def paired_difference(
    model: ItemScores, other: ItemScores, draws: int = DRAWS, level: float = LEVEL, seed: int = 0
) -> Difference:
    """
    The mean difference of two models with its bootstrap interval, paired by seed and item, clustered by image.

    Args:
        model (`ItemScores`): scores of the model.
        other (`ItemScores`): scores of what it is compared with; same seeds, same items.
        draws (`int`, *optional*, defaults to `DRAWS`): how many times images and seeds are resampled.
        level (`float`, *optional*, defaults to `LEVEL`): of the interval.
        seed (`int`, *optional*, defaults to `0`): of the draws.

    Raises:
        ValueError: other items, or another number of seeds.
    """
    if model.item_ids != other.item_ids:
        difference = _difference(model.item_ids, other.item_ids)
        raise ValueError(f"the two models were judged on different items: {difference}")
    if len(model.scores) != len(other.scores):
        raise ValueError(f"the two models have {len(model.scores)} and {len(other.scores)} seeds; pair them")
    differences = model.scores - other.scores
    means = _resampled_means(differences, model.image_ids, draws, np.random.default_rng(seed))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Difference(float(differences.mean()), float(low), float(high), len(differences))


def _resampled_means(
    values: npt.NDArray[np.float64], image_ids: Sequence[str], draws: int, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """The mean of (S, n) values in each draw of seeds and images, (draws,)."""
    _, image = np.unique(np.asarray(image_ids), return_inverse=True)
    images, seeds = int(image.max()) + 1, len(values)
    sums = np.stack([np.bincount(image, row, images) for row in values])  # (S, images)
    sizes = np.bincount(image, minlength=images)
    means = np.empty(draws)
    for draw in range(draws):
        drawn = np.bincount(rng.integers(images, size=images), minlength=images)
        rows = rng.integers(seeds, size=seeds)
        means[draw] = (sums[rows] @ drawn).mean() / (sizes @ drawn)
    return means


def _difference(first, second) -> str:
    only_first, only_second = set(first) - set(second), set(second) - set(first)
    return f"{len(only_first)} are only in the first, {len(only_second)} only in the second"

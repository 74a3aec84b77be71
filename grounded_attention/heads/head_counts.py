# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The counts of an audit per image; accuracies, intervals and tests are computed from these sums.

Items of one image are not independent, so the counts are sums over each image. Shape letters: I images, L layers, H
heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Li et al. (2020), section 3.1: a head that gives more of its attention to the regions "actively pays attention".
ACTIVE_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class HeadCounts:
    """Sums over the judged items (phrases, or words of a dependency relation) of each image."""

    image_ids: tuple[str, ...]
    items: np.ndarray
    correct: np.ndarray
    share: np.ndarray
    baseline: np.ndarray
    chance: np.ndarray
    reachable: np.ndarray | None = None

    def __post_init__(self):
        images = len(self.image_ids)
        names = ("items", "baseline", "chance", *(("reachable",) if self.reachable is not None else ()))
        rows = {name: getattr(self, name).shape for name in names}
        wrong = [f"{name} {shape}" for name, shape in rows.items() if shape != (images,)]
        if self.correct.ndim != 3 or len(self.correct) != images or self.correct.shape != self.share.shape:
            wrong.append(f"correct {self.correct.shape}, share {self.share.shape}")
        if wrong:
            raise ValueError(f"{images} images, but {', '.join(wrong)}; expected (I,) and (I, L, H)")

    @property
    def total(self) -> int:
        """Number of items of all images."""
        return int(self.items.sum())

    @property
    def accuracy(self) -> np.ndarray:
        """Share of right answers of each head, (L, H) in [0, 1]."""
        return self.correct.sum(0) / self.total

    @property
    def mean_share(self) -> np.ndarray:
        """Mean share of attention on all candidates, (L, H) in [0, 1]."""
        return self.share.sum(0) / self.total

    @property
    def active(self) -> np.ndarray:
        """Mask of the heads whose mean share is above `ACTIVE_SHARE`, (L, H) bool."""
        return self.mean_share > ACTIVE_SHARE

    @property
    def baseline_accuracy(self) -> float:
        """Accuracy of always choosing the most confident region, in [0, 1]."""
        return float(self.baseline.sum() / self.total)

    @property
    def chance_accuracy(self) -> float:
        """Expected accuracy of a random candidate, in [0, 1]."""
        return float(self.chance.sum() / self.total)

    @property
    def upper_bound(self) -> float | None:
        """Share of items that any candidate answers, the limit for every head; `None` if not counted."""
        return None if self.reachable is None else float(self.reachable.sum() / self.total)

    def take(self, images: Sequence[int] | np.ndarray) -> "HeadCounts":
        """The counts of the images with these indices; repeats are allowed."""
        index = np.asarray(images, dtype=np.int64)
        ids = tuple(self.image_ids[i] for i in index)
        arrays = (self.items, self.correct, self.share, self.baseline, self.chance)
        items, correct, share, baseline, chance = (array[index] for array in arrays)
        reachable = None if self.reachable is None else self.reachable[index]
        return HeadCounts(ids, items, correct, share, baseline, chance, reachable)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The targets of other images' phrases, for supervision with shuffled labels."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from grounded_attention.supervision.controls import keyed_generator

DRAWS = 1000  # of rows, before a split is taken to ground the phrases of one image only
REMEMBERED = 10_000  # images; a split has several rows of each


class LentTargets:
    """Which image lends an image its targets, and what those are: `lent(image_id)`.

    The lending row is drawn from the split by seed and image id alone: all rows of an image borrow from one image, in
    every epoch, process and batch.

    Args:
        split (`Any`): the rows that are trained on.
        collate (`Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]]`): rows -> their batch, with gold
            `phrase_regions` (B, P, R) and `region_candidate_mask` (B, R).
        seed (`int`): of the draws.
    """

    def __init__(self, split: Any, collate: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]], seed: int):
        self.split, self.collate, self.seed = split, collate, seed
        self._known: OrderedDict[str, Sequence[np.ndarray]] = OrderedDict()

    def __call__(self, image_id: str) -> Sequence[np.ndarray]:
        """The targets, each the indices (n,) of an image's candidate regions from 0 on.

        Raises:
            ValueError: no row of another image has a grounded phrase.
        """
        if image_id not in self._known:
            self._known[image_id] = self._draw(image_id)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return self._known[image_id]

    def _draw(self, image_id: str) -> Sequence[np.ndarray]:
        rng = keyed_generator(self.seed, "lender", image_id)
        for _ in range(DRAWS):
            row = self.split[int(rng.integers(len(self.split)))]
            targets = [] if row["image_id"] == image_id else self._targets(row)
            if targets:
                return targets
        raise ValueError(
            f"no grounded phrase of another image than {image_id!r} among {len(self.split)} rows: "
            "supervision.labels=shuffled needs several images"
        )

    def _targets(self, row: Mapping[str, Any]) -> list[np.ndarray]:
        batch = self.collate([row])
        gold = batch["phrase_regions"][0][:, batch["region_candidate_mask"][0].bool()].numpy()
        return [np.flatnonzero(regions) for regions in gold if regions.any()]

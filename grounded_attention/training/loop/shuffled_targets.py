# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Targets of phrases of other images, for supervision with shuffled labels."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from grounded_attention.supervision.controls import keyed_generator

DRAWS = 1000  # rows to draw before the split counts as one with a single grounded image
REMEMBERED = 10_000  # images in the cache; a split has several rows of each image


class ShuffledTargets:
    """
    Finds a donor image for each image, and returns the targets of the donor: `targets(image_id)`.

    The donor row is drawn from the split and depends only on the seed and the image id. All rows of an image have the
    same donor, in every epoch, process and batch.
    """

    def __init__(self, split: Any, collate: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]], seed: int):
        self.split, self.collate, self.seed = split, collate, seed
        self._known: OrderedDict[str, Sequence[np.ndarray]] = OrderedDict()

    def __call__(self, image_id: str) -> Sequence[np.ndarray]:
        """
        The targets of the donor of an image.
        """
        if image_id not in self._known:
            self._known[image_id] = self._draw(image_id)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return self._known[image_id]

    def _draw(self, image_id: str) -> Sequence[np.ndarray]:
        # The word is part of the seed: another word would draw other donors and change published figures.
        rng = keyed_generator(self.seed, "lender", image_id)
        for _ in range(DRAWS):
            row = self.split[int(rng.integers(len(self.split)))]
            targets = [] if row["image_id"] == image_id else self._targets(row)
            if targets:
                return targets
        raise ValueError(
            f"found no grounded phrase of an image other than {image_id!r} in {len(self.split)} rows: "
            "supervision.labels=shuffled needs rows of several images with grounded phrases"
        )

    def _targets(self, row: Mapping[str, Any]) -> list[np.ndarray]:
        batch = self.collate([row])
        gold = batch["phrase_regions"][0][:, batch["region_candidate_mask"][0].bool()].bool().numpy()
        return [np.flatnonzero(regions) for regions in gold if regions.any()]

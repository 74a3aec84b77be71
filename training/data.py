# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows joined with region features, and batches of them."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tasks import Task


class Collator:
    """Turns a task's rows into a batch: looks up each row's regions, lets the task build inputs and targets.

    Draws that a task makes (masking) depend on the seed, the epoch and the row's own key alone: they change from epoch
    to epoch and are the same after a resume, with any number of processes or workers.

    Args:
        task: whose `collate` builds the batch.
        processor: the model family's processor.
        regions: a region table, or None for text alone.
        seed: of the draws.
        options: keyword arguments of the task's `collate`.
    """

    def __init__(self, task: Task, processor: Any, regions: Any | None, seed: int = 0, **options: Any):
        self.task, self.processor, self.regions, self.seed, self.options = task, processor, regions, seed, options
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # seen by running DataLoader workers too

    def set_epoch(self, epoch: int) -> None:
        """Chooses the draws of this epoch."""
        self._epoch.fill_(epoch)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        records = None if self.regions is None else [self.regions[row["image_id"]] for row in rows]
        return self.task.collate(rows, records, self.processor, self.generator, **self.options)

    def generator(self, key: str) -> np.random.Generator:
        """The random generator of the row with this key, in this epoch."""
        return np.random.default_rng((self.seed, int(self._epoch), zlib.crc32(key.encode())))


def check_regions(rows: Any, regions: Any) -> None:
    """Refuses rows whose image has no features, before training rather than in the middle of it."""
    missing = sorted(set(rows.unique("image_id")) - set(regions.ids))
    if missing:
        regions[missing[0]]  # raises the table's own error, which names the table and the image


def limit_rows(rows: Any, limit: int | None, seed: int) -> Any:
    """At most `limit` rows, chosen by a seeded shuffle; in their original order."""
    if limit is None or limit >= len(rows):
        return rows
    chosen = np.random.default_rng(seed).permutation(len(rows))[:limit]
    return rows.select(np.sort(chosen))

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Batches of examples of similar length, which need little padding.

With `training: {train_sampling_strategy: group_by_length}` the Trainer draws each batch from examples of similar
length, given by the column `length` of the rows.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import datasets
import numpy as np
import pyarrow.compute as pc
from torch.utils.data import Sampler

LENGTH = "length"
# The rows of this many batches are drawn at random, then sorted by length. A small number mixes the rows better, a
# large number gives more similar lengths.
BATCHES_SORTED = 50
# Columns of our builders and tasks whose words are part of the sequence.
TEXT_COLUMNS = ("text", "captions")


def row_lengths(rows: datasets.Dataset, regions: Any | None) -> list[int]:
    """The number of words and regions of each row: its sequence length without word pieces and special tokens."""
    columns = [name for name in TEXT_COLUMNS if name in rows.column_names]
    if not columns:
        raise ValueError(
            f"cannot group the rows by length: their columns are {rows.column_names}, expected one of {TEXT_COLUMNS}"
        )
    table = rows.with_format("arrow")  # whole columns: row by row takes ten times as long
    lengths = np.zeros(len(rows), dtype=np.int64)
    for name in columns:
        if name == "captions":
            texts = pc.binary_join(table[name], " ")
        else:
            texts = table[name]
        lengths += pc.count_substring_regex(texts, r"\S+").to_numpy()
    if regions is not None:
        several = "image_ids" in rows.column_names
        images = zip(*table["image_ids"].to_pylist(), strict=True) if several else [table["image_id"].to_pylist()]
        for ids in images:
            unique, inverse = np.unique(ids, return_inverse=True)  # an image has many captions
            lengths += regions.counts(unique.tolist())[inverse]
    return lengths.tolist()


def add_lengths(rows: datasets.Dataset, regions: Any | None) -> datasets.Dataset:
    """Adds the lengths of the rows as the column `length`."""
    return rows.add_column(LENGTH, row_lengths(rows, regions))


class LengthSampler(Sampler[int]):
    """Samples indices in runs of `batch_size` rows with similar length. The runs are in random order, except that the
    run with the longest row comes first, so that a lack of memory shows in the first step.
    """

    def __init__(self, lengths: Sequence[int] | np.ndarray, batch_size: int, seed: int):
        self.lengths = np.asarray(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the order."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng([self.seed, self.epoch])
        drawn = rng.permutation(len(self))
        span = self.batch_size * BATCHES_SORTED
        groups = np.split(drawn, range(span, len(self), span))
        order = np.concatenate([group[np.argsort(-self.lengths[group], kind="stable")] for group in groups])
        whole = len(self) // self.batch_size
        batches = rng.permutation(order[: whole * self.batch_size].reshape(whole, self.batch_size))
        if whole:
            longest = int(self.lengths[batches].max(axis=1).argmax())
            batches[[0, longest]] = batches[[longest, 0]]
        return iter([*batches.ravel().tolist(), *order[whole * self.batch_size :].tolist()])

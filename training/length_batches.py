# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Lengths of examples, so that the Trainer can put examples of like lengths in one batch.

A batch is padded to its longest example. With `training: {train_sampling_strategy: group_by_length}` the Trainer draws
its batches among examples of like lengths, read from the column `length` (`length_column_name`) of the rows.
"""

from typing import Any

import datasets
import numpy as np

LENGTH = "length"
# Of the rows of our builders and tasks: the columns whose words are part of the sequence.
TEXT_COLUMNS = ("text", "caption1", "caption2", "question", "sentence")


def row_lengths(rows: datasets.Dataset, regions: Any | None) -> list[int]:
    """Words and regions of each row: the length of its sequence, but for word pieces and special tokens.

    Args:
        rows: with at least one of `TEXT_COLUMNS`; with `image_id`, or `image_ids` of several, where regions are given.
        regions: a region table, or None for text alone.

    Raises:
        ValueError: rows without a text.
        MissingRegionsError: an image that the table does not hold.
    """
    columns = [name for name in TEXT_COLUMNS if name in rows.column_names]
    if not columns:
        raise ValueError(f"rows of unknown length: their columns are {rows.column_names}, none of them {TEXT_COLUMNS}")
    lengths = np.zeros(len(rows), dtype=np.int64)
    for name in columns:
        lengths += [len(text.split()) for text in rows[name]]
    if regions is not None:
        several = "image_ids" in rows.column_names
        for images in zip(*rows["image_ids"], strict=True) if several else (rows["image_id"],):
            lengths += regions.counts(images)
    return lengths.tolist()


def add_lengths(rows: datasets.Dataset, regions: Any | None) -> datasets.Dataset:
    """The rows with their lengths as the column `length`."""
    return rows.add_column(LENGTH, row_lengths(rows, regions))

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Lengths of rows, and the Trainer's batches of like lengths made from them."""

from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from transformers import Trainer, TrainingArguments

from dataset_scripts.region_table import MissingRegionsError, RegionTable, RegionTableWriter
from tests.region_samples import PROVENANCE, sample
from training.length_batches import add_lengths, row_lengths

IMAGES, ROWS, BATCH = 40, 800, 4


@pytest.fixture
def table(tmp_path: Path) -> RegionTable:
    with RegionTableWriter(tmp_path / "regions", PROVENANCE) as writer:
        for image in range(IMAGES):
            writer.write(sample(str(image), count=1 + image, size=3))
    return RegionTable.open(tmp_path / "regions")


@pytest.fixture
def rows() -> datasets.Dataset:
    images = (np.random.default_rng(0).permutation(ROWS) % IMAGES).tolist()
    return datasets.Dataset.from_dict(
        {"image_id": [str(image) for image in images], "text": ["a red ball " * (1 + image % 2) for image in images]}
    )


def test_words_and_regions_are_counted(rows: datasets.Dataset, table: RegionTable) -> None:
    expected = [3 * (1 + int(row["image_id"]) % 2) + len(table[row["image_id"]]) for row in rows]
    assert row_lengths(rows, table) == expected
    assert row_lengths(rows, None) == [len(row["text"].split()) for row in rows]


def test_all_texts_of_a_row_count() -> None:
    pairs = datasets.Dataset.from_dict(
        {"caption1": ["a ball", "a"], "caption2": ["one two three", ""], "other": [1, 2]}
    )
    assert row_lengths(pairs, None) == [5, 1]


def test_rows_without_text_or_features_are_refused(rows: datasets.Dataset, table: RegionTable) -> None:
    with pytest.raises(ValueError, match=r"columns are \['image_id'\]"):
        row_lengths(rows.remove_columns("text"), table)
    unknown = datasets.Dataset.from_dict({"image_id": ["41"], "text": ["a ball"]})
    with pytest.raises(MissingRegionsError, match="41"):
        row_lengths(unknown, table)


def spread_within_batches(trainer: Trainer, rows: datasets.Dataset) -> float:
    lengths = np.array(rows["length"])[list(trainer._get_train_sampler())].reshape(-1, BATCH)
    return float((lengths.max(axis=1) - lengths.min(axis=1)).mean())


def test_the_trainer_groups_by_these_lengths(rows: datasets.Dataset, table: RegionTable, tmp_path: Path) -> None:
    rows = add_lengths(rows, table)
    spreads = {}
    for strategy in ("random", "group_by_length"):
        arguments = TrainingArguments(
            str(tmp_path), per_device_train_batch_size=BATCH, train_sampling_strategy=strategy, report_to="none"
        )
        trainer = Trainer(torch.nn.Linear(1, 1), arguments, train_dataset=rows)
        assert sorted(trainer._get_train_sampler()) == list(range(ROWS))
        spreads[strategy] = spread_within_batches(trainer, rows)
    assert spreads["group_by_length"] < spreads["random"] / 4

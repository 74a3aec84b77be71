# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Lengths of rows, and batches of like lengths made from them."""

import datasets
import numpy as np
import pytest
from transformers import TrainingArguments

from grounded_attention.dataset_scripts.regions.table import MissingRegionsError, RegionTable, RegionTableWriter
from grounded_attention.training.loop.data import LengthSampler, add_lengths, row_lengths
from grounded_attention.training.loop.trainer import GroundingTrainer
from tests.helpers.region_samples import PROVENANCE, sample

IMAGES = 40
ROWS = 800
BATCH = 4


@pytest.fixture
def table(tmp_path):
    with RegionTableWriter(tmp_path / "regions", PROVENANCE) as writer:
        for image in range(IMAGES):
            writer.write(sample(str(image), count=1 + image, size=3))
    return RegionTable.open(tmp_path / "regions")


@pytest.fixture
def rows():
    images = np.random.default_rng(0).permutation(ROWS) % IMAGES
    texts = ["a red ball " * (1 + image % 2) for image in images]
    return datasets.Dataset.from_dict({"image_id": [*map(str, images)], "text": texts})


def test_words_and_regions_are_counted(rows, table):
    expected = [3 * (1 + int(row["image_id"]) % 2) + len(table[row["image_id"]]) for row in rows]
    assert row_lengths(rows, table) == expected
    assert row_lengths(rows, None) == [len(row["text"].split()) for row in rows]


def test_rows_without_text_or_features_are_refused(rows, table):
    with pytest.raises(ValueError, match=r"columns are \['image_id'\]"):
        row_lengths(rows.remove_columns("text"), table)
    unknown = datasets.Dataset.from_dict({"image_id": ["41"], "text": ["a ball"]})
    with pytest.raises(MissingRegionsError, match="41"):
        row_lengths(unknown, table)


def spread_within_batches(order, lengths):
    batches = lengths[order].reshape(-1, BATCH)
    return np.ptp(batches, axis=1).mean()


@pytest.fixture
def lengths(rows, table):
    return np.array(row_lengths(rows, table))


def test_batches_hold_rows_of_like_lengths(lengths):
    order = list(LengthSampler(lengths, BATCH, seed=1))
    anyhow = np.random.default_rng(1).permutation(ROWS)
    assert spread_within_batches(order, lengths) < spread_within_batches(anyhow, lengths) / 4


def test_long_and_short_batches_are_mixed_and_the_longest_comes_first(lengths):
    ordered = lengths[list(LengthSampler(lengths, BATCH, seed=1))]
    assert ordered[:BATCH].max() == lengths.max()
    means = ordered.reshape(-1, BATCH).mean(axis=1)[1:]
    # Sorted batches go down nearly always; of shuffled ones about half go up.
    assert 0.35 < (np.diff(means) > 0).mean() < 0.65


def test_the_order_is_that_of_the_seed_and_the_epoch(lengths):
    sampler, again = (LengthSampler(lengths, BATCH, seed=1) for _ in range(2))
    first = list(sampler)
    assert first == list(again) != list(LengthSampler(lengths, BATCH, seed=2))
    sampler.set_epoch(1)
    again.set_epoch(1)
    assert first != list(sampler) == list(again)


@pytest.mark.parametrize("count", [0, 1, BATCH - 1, BATCH, 50 * BATCH + 3, 100 * BATCH + 1])
def test_every_row_is_drawn_once_whatever_their_number(count):
    lengths = np.random.default_rng(0).integers(1, 9, count)
    assert sorted(LengthSampler(lengths, BATCH, seed=0)) == list(range(count))


@pytest.mark.parametrize("data_seed, seed", [(None, 3), (5, 5)])
def test_the_trainer_draws_steps_of_like_lengths(rows, table, tmp_path, data_seed, seed):
    """Two micro-batches make a step, and share its lengths."""
    trainer = object.__new__(GroundingTrainer)
    trainer.train_dataset = add_lengths(rows, table)
    sizes = {"per_device_train_batch_size": BATCH, "gradient_accumulation_steps": 2, "use_cpu": True}
    seeds = {"train_sampling_strategy": "group_by_length", "seed": 3, "data_seed": data_seed}
    trainer.args = TrainingArguments(str(tmp_path), **sizes, **seeds)
    assert list(trainer._get_train_sampler()) == list(LengthSampler(row_lengths(rows, table), 2 * BATCH, seed))

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Differences between models: pairing, clusters of images, and when one may be claimed."""

from dataclasses import replace

import numpy as np
import pytest

from grounded_attention.metrics.significance import FEWEST_SEEDS, ItemScores, paired_difference

ITEMS = 60


def scores(values, per_image=1):
    values = np.atleast_2d(np.asarray(values, dtype=float))
    items = range(values.shape[1])
    return ItemScores(values, tuple(f"q{i:03}" for i in items), tuple(f"image{i // per_image}" for i in items))


def noise(seeds=5):
    return np.random.default_rng(0).normal(size=(seeds, ITEMS))


def test_a_model_does_not_differ_from_itself():
    same = scores(noise())
    found = paired_difference(same, same)
    assert found.mean == 0.0
    assert found.low == 0.0
    assert found.high == 0.0
    assert found.claimed is False


def test_a_constant_gain_is_found_whatever_the_noise_both_share():
    shared = noise()
    found = paired_difference(scores(shared + 0.25), scores(shared))
    assert (found.mean, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25))
    assert found.claimed


def test_too_few_seeds_claim_nothing():
    shared = noise(FEWEST_SEEDS - 1)
    assert not paired_difference(scores(shared + 0.25), scores(shared)).claimed


def test_one_seed_and_one_item_an_image_is_the_standard_error_of_the_mean():
    gains = noise(1)
    found = paired_difference(scores(gains), scores(np.zeros_like(gains)), draws=4000)
    error = gains.std(ddof=1) / np.sqrt(ITEMS)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=0.08)


def test_repeating_items_of_an_image_adds_no_certainty():
    gains = noise(1)
    once = paired_difference(scores(gains), scores(np.zeros_like(gains)))
    repeated = np.repeat(gains, 4, axis=1)
    clustered = paired_difference(scores(repeated, per_image=4), scores(np.zeros_like(repeated), per_image=4))
    assert (clustered.low, clustered.high) == pytest.approx((once.low, once.high))
    unclustered = paired_difference(scores(repeated), scores(np.zeros_like(repeated)))
    assert unclustered.high - unclustered.low < 0.7 * (clustered.high - clustered.low)


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(3)
    covered = 0
    for draw in range(200):
        gains = rng.normal(0.1, 1.0, (1, ITEMS))
        found = paired_difference(scores(gains), scores(np.zeros_like(gains)), draws=300, seed=draw)
        covered += found.low <= 0.1 <= found.high
    assert 0.89 <= covered / 200 <= 0.99


def test_seeds_that_disagree_widen_the_interval():
    gains = noise(1).repeat(5, axis=0)
    steady = paired_difference(scores(gains), scores(np.zeros_like(gains)))
    shifts = np.array([[-2.0], [-1.0], [0.0], [1.0], [2.0]])
    shaky = paired_difference(scores(gains + shifts), scores(np.zeros_like(gains)))
    assert shaky.high - shaky.low > 2 * (steady.high - steady.low)


def test_items_are_matched_by_id_and_not_by_place():
    runs = [
        {"example_id": ["b", "a"], "image_id": ["2", "1"], "accuracy": [0.0, 1.0]},
        {"example_id": ["a", "b"], "image_id": ["1", "2"], "accuracy": [0.5, 0.25]},
    ]
    found = ItemScores.collect(runs, "accuracy")
    assert found.item_ids == ("a", "b")
    assert found.image_ids == ("1", "2")
    assert found.scores.tolist() == [[1.0, 0.0], [0.5, 0.25]]


def test_what_cannot_be_paired_is_refused():
    first = scores(noise())
    with pytest.raises(ValueError, match="scores of different items: 1 are only in the first, 1 only in the second"):
        paired_difference(first, replace(first, item_ids=("other", *first.item_ids[1:])))
    with pytest.raises(ValueError, match="5 and 3 seeds"):
        paired_difference(first, scores(noise(3)))
    run = {"example_id": ["a"], "image_id": ["1"], "accuracy": [1.0]}
    with pytest.raises(ValueError, match="seed 1 and seed 0 have different items"):
        ItemScores.collect([run, {**run, "example_id": ["b"]}], "accuracy")

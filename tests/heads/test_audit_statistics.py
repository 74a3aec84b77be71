# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Intervals and tests of the audit: against loops, exact enumeration and examples worked by hand."""

import json
import tracemalloc
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from grounded_attention.heads.changes import permutation_test
from grounded_attention.heads.statistics import holm
from grounded_attention.heads.table import HeadCounts
from grounded_attention.metrics.intervals import interval_text, to_json


def counts_of(items, correct, baseline=None):
    """Counts with the given items (I,) and right answers (I, L, H)."""
    items = np.asarray(items)
    correct = np.asarray(correct)
    ids = tuple(f"image {number}" for number in range(len(items)))
    baseline = np.zeros_like(items) if baseline is None else baseline
    return HeadCounts(ids, items, correct, correct / 2, baseline, items / 3)


def random_counts(images, seed=0):
    """Two layers of three heads, right half of the time."""
    rng = np.random.default_rng(seed)
    items = rng.integers(1, 9, images)
    correct = rng.binomial(items[:, None, None], 0.5, (images, 2, 3))
    return counts_of(items, correct, rng.binomial(items, 0.3))


def test_interval_is_that_of_a_loop_over_samples_of_images():
    """Another way to resample (a loop that collects the drawn images) agrees as far as two sets of draws can."""
    counts = random_counts(images=25)
    rng = np.random.default_rng(99)
    samples = [counts.take(rng.integers(25, size=25)).accuracy for _ in range(2000)]
    expected = np.quantile(samples, [0.05, 0.95], axis=0)
    low, high = counts.intervals(level=0.9, draws=4000, seed=1)
    assert_allclose([low, high], expected, atol=0.012)
    assert (low < counts.accuracy).all()
    assert (counts.accuracy < high).all()


def test_same_seed_same_interval_and_blocks_do_not_matter(monkeypatch):
    counts = random_counts(images=40)
    found = counts.intervals(draws=101)
    monkeypatch.setattr("grounded_attention.heads.statistics._BLOCK", 40 * 7)
    assert_array_equal(found, counts.intervals(draws=101))
    assert (found != counts.intervals(draws=101, seed=1)).any()


def test_coverage_where_phrases_of_an_image_agree():
    """900 heads, true accuracy 0.4, images that are easy or hard: nine or more of ten intervals hold the truth.

    An interval that takes phrases for independent holds it far less often, so the property is not an idle one.
    """
    rng = np.random.default_rng(3)
    items = rng.integers(2, 12, 80)
    easiness = rng.beta(0.4, 0.6, (80, 30, 30))  # mean 0.4, mostly near 0 or 1
    counts = counts_of(items, rng.binomial(items[:, None, None], easiness))
    low, high = counts.intervals(draws=500)
    holds = (low <= 0.4) & (0.4 <= high)
    assert 0.9 < holds.mean() < 0.98
    naive = 1.96 * np.sqrt(counts.accuracy * (1 - counts.accuracy) / counts.total)
    holds = abs(counts.accuracy - 0.4) <= naive
    assert holds.mean() < 0.75


def test_one_image_has_no_interval():
    """Every sample would be that image: an interval without width would claim that nothing could be otherwise."""
    interval = counts_of([4], [[[1, 3]]]).intervals()[:, 0, 0]
    assert np.isnan(interval).all()
    assert interval_text(interval) == "no interval: too few images"
    assert json.loads(to_json([*interval.tolist(), 0.5, -np.inf])) == [None, None, 0.5, None]


def test_intervals_of_one_seed_are_drawn_together():
    """The same column as a head and as the baseline has the same interval."""
    counts = random_counts(images=20)
    same = counts_of(counts.items, counts.correct, counts.correct[:, 1, 2])
    assert same.baseline_interval() == tuple(same.intervals()[:, 1, 2])


@pytest.mark.parametrize("compare", [False, True], ids=["intervals", "permutation_test"])
def test_memory_does_not_grow_with_draws(monkeypatch, compare):
    """Draws x images would be 24 MB of float64; a block here is 0.5."""
    monkeypatch.setattr("grounded_attention.heads.statistics._BLOCK", 2**16)
    counts = random_counts(2000)
    others = counts_of(counts.items, counts.items[:, None, None] - counts.correct)
    tracemalloc.start()
    if compare:
        permutation_test(counts, others, draws=1500)
    else:
        counts.intervals(draws=1500)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * 2**20


def enumerated(differences):
    """Two-sided p of each head by all exchanges: (I, L, H) differences of right answers."""
    signs = np.array(list(product((1, -1), repeat=len(differences))))
    sums = abs(np.tensordot(signs, differences, 1))
    return (sums >= abs(differences.sum(0))).mean(0)


def two_checkpoints(images=8):
    before = random_counts(images, seed=1)
    moves = np.random.default_rng(2).integers(-1, 3, before.correct.shape)
    moved = np.clip(before.correct + moves, 0, before.items[:, None, None])
    return before, counts_of(before.items, moved)


def test_p_of_few_images_is_that_of_all_exchanges():
    before, after = two_checkpoints()
    found = permutation_test(before, after)
    assert_allclose(found.p, enumerated(after.correct - before.correct))
    assert_allclose(found.difference, after.accuracy - before.accuracy)


def test_drawn_exchanges_come_close_to_all():
    before, after = two_checkpoints()
    exact = permutation_test(before, after).p
    drawn = permutation_test(before, after, draws=255).p
    assert (exact != drawn).any()
    assert_allclose(drawn, exact, atol=0.1)


def test_order_of_images_does_not_matter():
    before, after = two_checkpoints(images=40)
    shuffled = after.take(np.random.default_rng(0).permutation(40))
    one = permutation_test(before, after)
    other = permutation_test(before, shuffled)
    assert_array_equal(one.difference, other.difference)
    assert_array_equal(one.p, other.p)


def test_a_change_is_found_and_nothing_is_not():
    before = random_counts(60, seed=1)
    correct = before.correct.copy()
    correct[:, 1, 2] = before.items
    found = permutation_test(before, counts_of(before.items, correct), draws=999)
    assert found.p[1, 2] == pytest.approx(1 / 1000)
    assert found.difference[1, 2] > 0.3
    others = np.ones((2, 3), dtype=bool)
    others[1, 2] = False
    assert (found.p[others] == 1).all()
    assert (found.difference[others] == 0).all()


def test_pairs_that_are_none():
    counts = random_counts(8)
    with pytest.raises(ValueError, match="1 are only in the first, 0 only in the second"):
        permutation_test(counts, counts.take(range(7)))
    more = counts.items.copy()
    more[5] += 1
    with pytest.raises(ValueError, match=rf"image image 5 has {counts.items[5]} items .* {more[5]} in the second"):
        permutation_test(counts, counts_of(more, counts.correct))


def rejected_by_holm(p, level):
    """Which tests the procedure claims, in its own words: stop at the first that fails."""
    claimed = np.zeros(len(p), dtype=bool)
    for rank, test in enumerate(np.argsort(p, kind="stable")):
        if p[test] > level / (len(p) - rank):
            break
        claimed[test] = True
    return claimed


def test_corrected_p_claim_what_the_step_procedure_claims():
    rng = np.random.default_rng(0)
    claims = 0
    for _ in range(200):
        p = rng.beta(0.3, 1, 12)
        corrected = holm(p)
        assert_array_equal(holm(p.reshape(3, 4)), corrected.reshape(3, 4))
        for level in (0.01, 0.05, 0.2):
            claimed = corrected <= level
            assert_array_equal(claimed, rejected_by_holm(p, level))
            claims += claimed.sum()
    assert claims > 250


def test_no_tests_need_no_correction():
    assert holm([]).shape == (0,)

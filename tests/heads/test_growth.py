# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Memory of a ranking does not grow with the number of rows: images in blocks, and the first phrases alone."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from grounded_attention.heads import measure, statistics
from grounded_attention.heads.measure import Tally
from grounded_attention.heads.ranking import rank_heads
from grounded_attention.heads.statistics import ALL, block_of
from tests.helpers.tiny_audit import make_examples, make_regions, processor_of, vl_bert


@pytest.fixture
def blocks(monkeypatch):
    """A small number of blocks and of phrases that are kept."""
    monkeypatch.setattr(statistics, "BLOCKS", 16)
    monkeypatch.setattr(measure, "BLOCKS", 16)
    monkeypatch.setattr(measure, "FIRST_PHRASES", 16)
    return 16


def tally_of(numbers):
    tally = Tally()
    for number in numbers:
        sums = {"items": 1, "correct": np.full((2, 3), number), "share": 0, "baseline": 0, "chance": 0}
        tally.add_sums((ALL, f"image {number % 60}"), {"first": number, **sums})
    return tally


def test_many_images_are_counted_in_blocks_of_whole_images(blocks):
    """Equal whatever part of the phrases is counted first, in blocks or not."""
    numbers = range(200)
    whole = tally_of(numbers)
    by_hand = {}
    for number in numbers:
        by_hand.setdefault(block_of(f"image {number % 60}"), []).append(number)
    assert {image for _, image in whole.sums} == set(by_hand)
    assert len(by_hand) <= blocks
    for (_, image), sums in whole.sums.items():
        assert sums["items"] == len(by_hand[image])
        assert_array_equal(sums["correct"], np.full((2, 3), sum(by_hand[image])))
        assert sums["first"] == min(by_hand[image])
    for parts in ([numbers[:5], numbers[5:]], [numbers[5:], numbers[:5]]):  # five images are counted apart
        merged = Tally()
        for part in parts:
            merged.merge(tally_of(part))
        assert merged.counts()[ALL].unit == "blocks of images"
        for place, sums in whole.sums.items():
            assert_array_equal(merged.sums[place]["correct"], sums["correct"])
    assert tally_of(numbers[:blocks]).counts()[ALL].unit == "images"


class Drawn:
    """Examples and their regions, made whenever they are read."""

    def __init__(self, count):
        self.count = count
        self.regions = make_regions()
        self.examples = make_examples(self.regions)

    def __iter__(self):
        for number in range(self.count):
            example = self.examples[number % len(self.examples)]
            yield replace(example, image_id=f"{number} {example.image_id}")

    def __getitem__(self, image_id):
        return self.regions[image_id.partition(" ")[2]]


def rank(count):
    model = vl_bert()
    rows = Drawn(count)
    return rank_heads(model, processor_of(model), rows, {}, regions=rows, words="last", ablate=0)


def peak_of(count):
    tracemalloc.start()
    rank(count)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_ranking_five_times_the_rows_takes_no_more_memory(blocks):
    peak_of(8)  # what is made once
    small = peak_of(100)
    assert peak_of(500) < 1.2 * small


def test_scores_in_blocks_are_those_of_all_images(monkeypatch, blocks):
    """Means are over phrases; only the interval of a block and the chance of a box are drawn otherwise."""
    in_blocks = rank(100)
    monkeypatch.undo()
    apart = rank(100)
    assert in_blocks.heads == apart.heads
    assert len(in_blocks.reported_on.counts.image_ids) <= blocks < len(apart.reported_on.counts.image_ids)
    for name in ("accuracy", "mean_share"):
        assert_allclose(getattr(in_blocks.reported_on.counts, name), getattr(apart.reported_on.counts, name))
    assert_allclose(in_blocks.centre_size, apart.centre_size)
    for one, other in zip(in_blocks.boxes, apart.boxes, strict=True):
        assert one.count == other.count
        assert one.pointing == pytest.approx(other.pointing)
        assert one.pointing_interval == pytest.approx(other.pointing_interval, abs=0.1)

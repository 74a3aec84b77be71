# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Regions that overlap masked ones in pre-training, by hand: shown, hidden too (paper), or as in the public code."""

import numpy as np
import pytest
from datasets import Dataset

from grounded_attention.dataset_scripts.regions.table import Regions
from grounded_attention.processing import LXMERTProcessor
from grounded_attention.tasks import TASKS
from grounded_attention.tasks.masking import ChosenRegions, hide_overlapping, mean_of_visible
from grounded_attention.training.loop.data import Collator
from tests.helpers.plain_overlap import plain_iou
from tests.helpers.tiny_vgp import FEATURE_SIZE, WORDS, TinyTable, tiny_processor

IMAGES = 8
SIZE = (40, 30)
OPTIONS = {"relationship": False, "region_probability": 0.3, "regions_kept": 0.4}


@pytest.fixture
def table():
    """Images with pairs of regions that overlap more or less."""
    rng = np.random.default_rng(0)
    table = TinyTable()
    for image in range(IMAGES):
        count = 4 + image
        corner = np.repeat(rng.uniform(0, 0.5, (count, 2)), 2, axis=0) + rng.uniform(0, 0.15, (2 * count, 2))
        boxes = np.concatenate([corner, corner + 0.3], axis=1).astype(np.float32)
        features = (rng.random((2 * count, FEATURE_SIZE)) + 0.5).astype(np.float16)
        classes = rng.integers(0, 5, 2 * count).astype(np.int32)
        table[str(image)] = Regions(str(image), *SIZE, boxes=boxes, features=features, classes=classes)
    return table


@pytest.fixture
def rows():
    names = [str(image) for image in range(IMAGES)]
    texts = [f"{WORDS[5 + image]} {WORDS[6 + image]}" for image in range(IMAGES)]
    return Dataset.from_dict({"image_id": names, "caption_id": names, "text": texts})


def make_batch(table, rows, **options):
    return Collator(TASKS["pretraining"], tiny_processor(), table, seed=3, options={**OPTIONS, **options})(list(rows))


def overlap(record, one, other):
    """The overlap of two regions in pixels; the last pixel of a box is part of it."""
    last_pixel = np.array([0, 0, 1, 1])
    boxes = record.boxes[[one, other]] * np.tile(SIZE, 2) + last_pixel
    return plain_iou(*boxes.tolist())


def test_overlapping_regions_by_hand(table, rows):
    found = {name: make_batch(table, rows, co_masking=name) for name in ("none", "paper", "released")}
    more = 0
    fewer = 0
    for row, example in enumerate(rows):
        record = table[example["image_id"]]
        numbers = range(len(record))
        near = [{n for n in numbers if overlap(record, n, m) > 0.4} for m in numbers]

        def columns(name, field, row=row, numbers=numbers):
            return {n for n in numbers if found[name][field][row, n + 1]}

        predicted = columns("none", "predicted_regions")
        hidden = columns("none", "masked_regions")
        also_hidden = set().union(*(near[m] for m in hidden))
        uncounted = set().union(*(near[m] for m in predicted))
        for name, expected, missing in (
            ("none", hidden, hidden),
            ("paper", also_hidden, also_hidden),
            ("released", hidden, uncounted),
        ):
            assert columns(name, "predicted_regions") == predicted
            assert columns(name, "masked_regions") == expected
            total = record.features[sorted({*numbers} - expected)].sum(0, dtype=np.float64)
            mean = total / max(len(record) - len(missing), 1)
            assert np.allclose(found[name]["region_features"][row, 0], mean, atol=1e-5), name
        more += len(also_hidden) > len(hidden)
        fewer += len(uncounted) > len(hidden)
    # the three differ
    assert more
    assert fewer


def test_an_exchanged_region_that_overlaps_a_hidden_one_is_hidden(table):
    record = table["0"]
    record.boxes[1] = record.boxes[0]
    chosen = ChosenRegions(*(np.zeros(len(record), dtype=bool) for _ in range(3)))
    chosen.predicted[:2] = chosen.hidden[0] = chosen.exchanged[1] = True
    found = hide_overlapping(record, chosen)
    assert found.predicted is chosen.predicted
    assert found.hidden[:2].all()
    assert not found.exchanged.any()


def test_a_mean_over_no_counted_region_is_the_sum():
    features = np.ones((3, 2), dtype=np.float16)
    none = np.zeros(3, dtype=bool)
    assert (mean_of_visible(features, none, none) == 3).all()
    assert (mean_of_visible(features, ~none, none) == 0).all()


def test_without_a_whole_image_there_is_no_fault_to_repeat(table, rows):
    processor = LXMERTProcessor(tiny_processor().tokenizer, region_feature_size=FEATURE_SIZE)
    collate = Collator(TASKS["pretraining"], processor, table, options={**OPTIONS, "co_masking": "released"})
    with pytest.raises(ValueError, match="changes the feature of the whole image"):
        collate([rows[0]])

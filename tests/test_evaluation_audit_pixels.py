# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Audit and captured attention of a model that reads pixels: those of the same weights given the features."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from evaluation.audit_examples import AuditExample, AuditPhrase
from evaluation.audit_run import audit
from evaluation.example_attention import capture_examples
from evaluation.observers import get_observer, reads_pixels
from processing import FastRCNNImageProcessor, VLBertProcessor
from tests.tiny_vgp import FEATURE_SIZE, tiny_model, tiny_processor, tiny_table

VISION = {"model_type": "fast_rcnn", "embedding_size": 4, "hidden_sizes": [4, 4, 4, FEATURE_SIZE]}
VISION |= {"depths": [1, 1, 1, 1], "roi_size": 2}
SIZE = {"shortest_edge": 32, "longest_edge": 48}
CAPTION = "a b c d"


@pytest.fixture(scope="module")
def two_ways():
    """The model with pixels and its processor, the one with features and its own; pictures; tables; examples."""
    rng = np.random.default_rng(0)
    reading = tiny_model(vision_config=VISION).eval()
    given = tiny_model().eval()
    left = given.load_state_dict(reading.state_dict(), strict=False)
    assert not left.missing_keys and all("vision_model" in name for name in left.unexpected_keys)
    table = tiny_table(3)
    pictures = {name: Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)) for name in table}
    processor = VLBertProcessor(tiny_processor().tokenizer, FastRCNNImageProcessor(size=SIZE))
    features = tiny_table(3)
    for name, regions in table.items():
        seen = processor([CAPTION], images=[pictures[name]], region_boxes=[regions.boxes])
        width, height = seen["image_sizes"][0].tolist()
        boxes = torch.from_numpy(regions.boxes) * torch.tensor([width, height, width, height])
        with torch.no_grad():
            found = reading.vl_bert.vision_model(seen["pixel_values"], boxes[None]).region_features[0]
        features[name] = replace(regions, features=found.numpy())
        table[name] = replace(regions, features=None)
    examples = [AuditExample(name, CAPTION, (AuditPhrase(2, 5, table[name].boxes[:1], ()),)) for name in table]
    return (reading, processor, table), (given, tiny_processor(), features), pictures, examples


def test_what_reads_pixels(two_ways):
    (reading, *_), (given, *_), *_ = two_ways
    assert reads_pixels(reading) and not reads_pixels(given)


def test_audit_from_pixels(two_ways):
    (reading, processor, table), (given, other, features), pictures, examples = two_ways
    mine = audit(reading, processor, examples, table, images=pictures.__getitem__, progress=False)
    theirs = audit(given, other, examples, features, progress=False)
    for direction, counts in theirs.entities.items():
        np.testing.assert_array_equal(mine.entities[direction]["all"].correct, counts["all"].correct)
        np.testing.assert_allclose(mine.entities[direction]["all"].share, counts["all"].share, atol=1e-5)


def test_captured_from_pixels(two_ways):
    (reading, processor, table), (given, other, features), pictures, examples = two_ways
    mine = capture_examples(get_observer(reading), processor, examples, table, pictures.__getitem__)
    theirs = capture_examples(get_observer(given), other, examples, features, pictures.__getitem__)
    for one, another in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one.attention, another.attention, atol=1e-5)
        np.testing.assert_allclose(one.back, another.back, atol=1e-5)
        assert one.attention.std() > 0

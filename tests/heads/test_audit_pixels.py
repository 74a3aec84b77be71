# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Audit and captured attention of a model that reads pixels, against full maps of the same pictures."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from grounded_attention.heads.example_attention import capture_examples
from grounded_attention.heads.examples import AuditExample
from grounded_attention.heads.measure import audit
from grounded_attention.heads.reading import get_observer, reads_pixels
from grounded_attention.processing import FastRCNNImageProcessor, VLBertProcessor
from grounded_attention.processing.phrase import Phrase
from grounded_attention.utils.boxes import box_iou
from tests.helpers.tiny_vgp import FEATURE_SIZE, TinyRegions, tiny_model, tiny_processor, tiny_table

VISION = {"model_type": "fast_rcnn", "embedding_size": 4, "hidden_sizes": [4, 4, 4, FEATURE_SIZE]}
VISION |= {"depths": [1, 1, 1, 1], "roi_size": 2}
# "b c", whose last token stands third after [CLS]
CAPTION = "a b c d"
PHRASE = (2, 5)
LAST = 3


@pytest.fixture(scope="module")
def pixels():
    """Boxes without features; pictures, the model, its processor, examples with one phrase each."""
    rng = np.random.default_rng(0)
    table = tiny_table(6)
    pictures = {}
    examples = []
    for name, regions in table.items():
        table[name] = TinyRegions(None, regions.boxes, regions.classes)
        pictures[name] = Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8))
        examples.append(AuditExample(name, CAPTION, (Phrase("", *PHRASE, boxes=regions.boxes[:1]),)))
    image_processor = FastRCNNImageProcessor(size={"shortest_edge": 32, "longest_edge": 48})
    processor = VLBertProcessor(tiny_processor().tokenizer, image_processor)
    return tiny_model(vision_config=VISION, initializer_range=0.5).eval(), processor, table, pictures, examples


def full_maps(pixels):
    """Per example (L, H, N, N) of eager attention and where the regions are in the sequence."""
    _, processor, table, pictures, _ = pixels
    model = tiny_model(vision_config=VISION, initializer_range=0.5).eval()
    model.set_attn_implementation("eager")
    for name in table:
        inputs = processor([CAPTION], images=[pictures[name]], region_boxes=[table[name].boxes])
        regions = inputs["input_ids"].shape[1] + inputs.pop("region_candidate_mask")[0].nonzero()[:, 0]
        with torch.no_grad():
            maps = torch.cat(list(model(**inputs, output_attentions=True).attentions))
        yield maps.numpy(), regions.numpy()


def test_what_reads_pixels(pixels):
    assert reads_pixels(pixels[0])
    assert not reads_pixels(tiny_model())


def test_audit_from_pixels(pixels):
    model, processor, table, pictures, examples = pixels
    counts = audit(model, processor, examples, table, images=pictures.__getitem__, progress=False).counts
    for name, (maps, regions) in zip(table, full_maps(pixels), strict=True):
        row = counts.image_ids.index(name)
        given = maps[:, :, LAST][..., regions]  # (L, H, R)
        boxes = table[name].boxes
        hits = box_iou(boxes, boxes[:1])[:, 0] >= 0.5
        assert_array_equal(counts.correct[row], hits[given.argmax(-1)])
        assert_allclose(counts.share[row], given.sum(-1), atol=1e-5)


def test_captured_from_pixels(pixels):
    model, processor, table, pictures, examples = pixels
    found = capture_examples(get_observer(model), processor, examples, table, pictures.__getitem__)
    for example, (maps, regions) in zip(found, full_maps(pixels), strict=True):
        words = np.arange(1, 5)
        assert_allclose(example.attention, maps[:, :, words][..., regions], atol=1e-5)
        assert_allclose(example.back, maps[:, :, regions][..., words], atol=1e-5)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention captured for pictures, against full maps."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image
from transformers import BertTokenizer

from grounded_attention.heads.example_attention import capture_examples, naming_words
from grounded_attention.heads.examples import AuditExample
from grounded_attention.heads.reading import get_observer
from grounded_attention.processing import VLBertProcessor
from grounded_attention.processing.phrase import Phrase
from grounded_attention.utils.boxes import box_iou
from tests.helpers.tiny_vgp import FEATURE_SIZE, WORDS, tiny_model, tiny_processor, tiny_table

CAPTION = "a b c , d"
NAMES = ["ant", "bee", "cat", "dog", "elk"]


class Regions(dict):
    """Regions by image id, with the names of a detector's classes."""

    class_names = NAMES


@pytest.fixture(scope="module")
def table():
    return tiny_table(2)


@pytest.fixture(scope="module")
def captured(table):
    example = AuditExample("1", CAPTION, (Phrase("", 2, 5, boxes=table["1"].boxes[:1]),))
    return capture(tiny_model(), tiny_processor(), example, Regions({"1": table["1"]}))


def capture(model, processor, example, regions):
    observer = get_observer(model.eval())
    picture = Image.new("RGB", (40, 30))
    (found,) = capture_examples(observer, processor, [example], regions, lambda image: picture)
    return found


def full_maps(table, caption, processor, model):
    """(L, H, N, N) of eager attention over the same inputs, and where the regions are in the sequence."""
    inputs = processor(caption, region_features=table["1"].features, region_boxes=table["1"].boxes)
    model.set_attn_implementation("eager")
    candidates = inputs.pop("region_candidate_mask")
    with torch.no_grad():
        outputs = model(**inputs, output_attentions=True)
    regions = inputs["input_ids"].shape[1] + candidates[0].nonzero()[:, 0]
    return torch.cat(list(outputs.attentions)).numpy(), regions.numpy()


def test_captured_attention_is_that_of_full_maps(captured, table):
    maps, regions = full_maps(table, CAPTION, tiny_processor(), tiny_model().eval())
    words = np.arange(1, 6)  # after [CLS]
    assert [captured.text(word) for word in range(5)] == ["a", "b", "c", ",", "d"]
    assert_allclose(captured.attention, maps[:, :, words][..., regions], atol=1e-6)
    assert_allclose(captured.back, maps[:, :, regions][..., words], atol=1e-6)
    assert captured.layers == ("0", "1")
    assert captured.heads == 2


def test_sub_words_are_averaged_as_rows_and_summed_as_columns(table):
    words = [*WORDS, "##b"]
    tokenizer = BertTokenizer(vocab={word: index for index, word in enumerate(words)})
    processor = VLBertProcessor(tokenizer, region_feature_size=FEATURE_SIZE)
    assert tokenizer.tokenize("c ab d") == ["c", "a", "##b", "d"]
    model = tiny_model(vocab_size=len(words)).eval()
    found = capture(model, processor, AuditExample("1", "c ab d", ()), table)
    maps, regions = full_maps(table, "c ab d", processor, model)
    assert found.text(1) == "ab"
    assert found.labels == ()
    assert_allclose(found.attention[:, :, 1], maps[:, :, 2:4][..., regions].mean(2), atol=1e-6)
    assert_allclose(found.back[..., 1], maps[:, :, regions][..., 2:4].sum(-1), atol=1e-6)


def test_words_of_a_phrase_know_their_gold_regions(captured, table):
    hit = (box_iou(captured.boxes, table["1"].boxes[:1]) >= 0.5)[:, 0]
    assert hit.any()
    assert np.array_equal(captured.gold, np.outer([False, True, True, False, False], hit))
    assert captured.labels == tuple(NAMES[number] for number in table["1"].classes)


def test_of_many_regions_the_first_stay_as_in_the_audit(table):
    record = table["1"]
    count = len(record.boxes)
    assert count > 1
    ascending = SimpleNamespace(**vars(record), scores=np.linspace(0, 1, count, dtype=np.float32))
    processor = tiny_processor()
    processor.max_regions = 1
    found = capture(tiny_model(), processor, AuditExample("1", CAPTION, ()), Regions({"1": ascending}))
    assert_allclose(found.boxes, record.boxes[:1])
    assert found.labels == (NAMES[record.classes[0]],)


def test_shares_come_apart_into_spread_and_sum(captured):
    weights, share = captured.over_regions(1, 0, 1)
    assert_allclose(weights * share, captured.attention[0, 1, 1], rtol=1e-5)
    assert weights.sum() == pytest.approx(1)
    mean, _ = captured.over_regions(1, 0)
    expected = captured.attention[0, :, 1].mean(0)
    assert_allclose(mean, expected / expected.sum(), rtol=1e-5)


def test_words_to_show_are_those_that_name_something(captured):
    assert [captured.text(word) for word in naming_words(captured)] == ["c"], "the phrase b c ends with c"
    unknown = replace(captured, gold=None, caption="a bcd efg , d", words=((0, 1), (2, 5), (6, 9), (10, 11), (12, 13)))
    assert naming_words(unknown, 2) == [1, 2]

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Every builder whose files have boxes yields the one row: collators, the choice of heads and readers take it."""

from dataclasses import replace

import numpy as np
import pytest

from grounded_attention import BUILDERS, GroundingCollator, RegionTable, grounded_rows
from grounded_attention.heads.examples import grounded_examples
from grounded_attention.processing.phrase import row_texts
from tests.helpers.built import built
from tests.helpers.tiny_vgp import tiny_processor
from tests.helpers.tiny_vlm_processors import make_processor

NAMES = ["flickr30k_entities", "gqa", "llava_instruct", "refcoco", "vgp"]


@pytest.fixture(scope="module", params=NAMES)
def row(request, scenes, tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("cache"))
    options = {"negatives": "random"} if request.param == "vgp" else {}
    builder = built(BUILDERS[request.param], scenes, cache, splits="train", **options)
    return next(row for row in builder.as_dataset("train") if any(each["boxes"] for each in row["phrases"]))


def test_phrases_are_words_of_a_text_with_boxes(row):
    texts = row_texts(row)
    for phrase in row["phrases"]:
        assert texts[phrase["sentence"]][phrase["start"] : phrase["end"]] == phrase["text"]
        boxes = np.reshape(phrase["boxes"], (-1, 4))
        assert ((boxes >= 0) & (boxes <= 1)).all()
        assert (boxes[:, :2] < boxes[:, 2:]).all()


def assert_grounded(batch):
    assert batch["phrase_mask"].any()
    assert (batch["phrase_regions"] > 0).any()


def test_the_collator_takes_it(row, scenes):
    picture = np.full((40, 40, 3), 9, dtype=np.uint8)
    assert_grounded(GroundingCollator(make_processor("llava"))([{**row, "image": picture}]))
    if "messages" not in row:  # conversations are for decoders
        regions = RegionTable.open(scenes / "regions")[row["image_id"]]
        narrow = replace(regions, features=regions.features[:, :16])
        assert_grounded(GroundingCollator(tiny_processor())([{**row, "regions": narrow}]))


def test_the_choice_of_heads_takes_it(row):
    found = [phrase.text for example in grounded_examples([row]) for phrase in example.phrases if len(phrase.boxes)]
    related = row.get("related") or [True] * len(row_texts(row))
    expected = [p["text"] for p in row["phrases"] if p["boxes"] and related[p["sentence"]]]
    assert found == expected


def test_a_reader_of_rows_gives_it_back(row):
    picture = np.full((row.get("height") or 40, row.get("width") or 40, 3), 9, dtype=np.uint8)
    [read] = grounded_rows([{**row, "image": picture}])
    assert row_texts(read) == row_texts(row)
    boxes = {(each["sentence"], each["start"], each["end"]): each["boxes"] for each in read["phrases"]}
    for phrase in row["phrases"]:
        if phrase["boxes"]:
            found = boxes[phrase["sentence"], phrase["start"], phrase["end"]]
            np.testing.assert_allclose(found, phrase["boxes"], atol=1e-6)

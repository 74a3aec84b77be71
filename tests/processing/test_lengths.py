# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`max_sequence_length`: text and regions cut together."""

import json
import random

import numpy as np
import pytest

from grounded_attention.processing import DroppedPhrase
from tests.helpers.processing_helpers import FEATURE_SIZE, make_processor, make_tokenizer, span

WORDS = "a man in red shirt dog on the ball".split()


def shorten(text, regions, limit, shortest):
    """One column at a time, as the public code words it; the text is never cut below its shortest."""
    while text + regions > limit:
        if regions > text or text <= shortest:
            regions -= 1
        else:
            text -= 1
    return text, regions


def regions_of(count):
    if count is None:
        return {"region_features": None, "region_boxes": None}
    features = np.arange(1, count + 1, dtype=np.float32)[:, None].repeat(FEATURE_SIZE, axis=1)
    return {"region_features": features, "region_boxes": np.tile(np.float32([0, 0, 1, 1]), (count, 1))}


def batch_of(rows):
    return {key: [row[key] for row in rows] for key in rows[0]}


@pytest.mark.parametrize("limit", [3, 4, 5, 8, 9, 12, 40])
def test_columns_equal_dropping_one_at_a_time(limit):
    source = random.Random(limit)
    texts = [" ".join(source.choices(WORDS, k=source.randint(0, 12))) for _ in range(60)]
    counts = [source.choice([None, *range(12)]) for _ in texts]
    given = batch_of([regions_of(count) for count in counts])
    inputs = make_processor(max_regions=9)(texts, **given, max_sequence_length=limit, max_length=11)
    for row, (text, count) in enumerate(zip(texts, counts, strict=True)):
        ids = make_tokenizer()(text, truncation=True, max_length=11)["input_ids"]
        images = 0 if count is None else 1 + min(count, 9)
        expected = shorten(len(ids), images, limit, shortest=2)
        tokens = int(inputs["attention_mask"][row].sum())
        regions = int(inputs["region_attention_mask"][row].sum())
        assert (tokens, regions) == expected, row
        # The text keeps its beginning and its last token, the regions their beginning.
        kept = inputs["input_ids"][row, :tokens]
        assert kept.tolist() == [*ids[: tokens - 1], ids[-1]]
        numbers = inputs["region_features"][row, 1:regions, 0]
        assert numbers.tolist() == [*range(1, regions)]


def test_two_texts_lose_from_the_longer_and_plain_text_at_its_end():
    pair = make_processor()("a man in red", "a dog", **regions_of(9), max_sequence_length=12)
    assert pair["attention_mask"].sum() == 6
    assert pair["region_attention_mask"].sum() == 6
    assert make_tokenizer().decode(pair["input_ids"][0]) == "[CLS] a man [SEP] a [SEP]"
    plain = make_processor()("a man in red", layout="plain", max_sequence_length=3)
    assert make_tokenizer().decode(plain["input_ids"][0]) == "a man in"


def test_rows_without_image_share_nothing():
    rows = [regions_of(6), regions_of(None)]
    inputs = make_processor()(
        ["a man in red", "a man in red shirt on a dog"],
        **batch_of(rows),
        layout=["caption", "plain"],
        max_sequence_length=8,
    )
    assert inputs["attention_mask"].sum(dim=1).tolist() == [4, 8]
    assert inputs["region_attention_mask"].sum(dim=1).tolist() == [4, 0]


def test_the_lowest_scores_go_and_every_cut_phrase_is_reported():
    text = "a man in red shirt"
    regions = {"a man": [0], "red shirt": [1], "man": [1, 3], "a": [1]}
    phrases = [span(text, words, regions=of_words) for words, of_words in regions.items()]
    inputs = make_processor()(
        text, **regions_of(5), region_scores=[0.5, 0.1, 0.9, 0.8, 0.2], phrases=phrases, max_sequence_length=8
    )
    assert inputs["region_features"][0, 1:, 0].tolist() == [1, 3, 4]
    assert make_tokenizer().decode(inputs["input_ids"][0]) == "[CLS] a man [SEP]"
    marked = inputs["phrase_regions"][0].nonzero()
    assert marked.tolist() == [[0, 1], [2, 3]]
    assert inputs.dropped_phrases == [
        [DroppedPhrase(1, "red shirt", "truncated"), DroppedPhrase(3, "a", "regions cut")]
    ]


@pytest.mark.parametrize(
    "options, message",
    {
        '{"max_sequence_length": 2}': "max_sequence_length=2, expected at least 3",
        '{"text_pair": "a", "max_sequence_length": 3}': "max_sequence_length=3, expected at least 4",
        '{"truncation": false, "max_sequence_length": 9}': "also cuts texts; remove it, or set truncation=True",
    }.items(),
)
def test_senseless_limits_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_processor()("a man", **regions_of(2), **json.loads(options))

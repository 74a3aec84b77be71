# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tags: the region that each token of a text sees."""

import json

import numpy as np
import pytest
import torch

from grounded_attention.processing import FastRCNNImageProcessor, VLBertProcessor
from tests.helpers.processing_helpers import FEATURE_SIZE, make_processor, span

TEXT = "a man and a dog"
PAIR = "the umbrella, the ball"


def regions(*counts):
    return {
        "region_features": [np.ones((count, FEATURE_SIZE)) for count in counts],
        "region_boxes": [[[0.0, 0.0, 1.0, 1.0]] * count for count in counts],
    }


def tagged(inputs):
    """The columns of the first example's tokens that see a region, each with the region's column."""
    (columns,) = (inputs["token_regions"][0] >= 0).nonzero(as_tuple=True)
    return dict(zip(columns.tolist(), inputs["token_regions"][0, columns].tolist(), strict=True))


def read_tags(tags, count, text=TEXT, **options):
    return tagged(make_processor()([text], tags=[tags], **regions(count), **options))


def test_tokens_see_their_region_and_the_rest_the_whole_image():
    of_text = [span(TEXT, "man", regions=[0]), span(TEXT, "dog", regions=[2])]
    of_pair = span(PAIR, "umbrella", 1, regions=[1])
    tags = [[*of_text, of_pair], None]
    inputs = make_processor()([TEXT, TEXT], [PAIR, None], tags=tags, **regions(3, 1))
    # [CLS] a man and a dog [SEP] the umbrella , the ball [SEP]; column 0 is the whole image.
    assert inputs["token_regions"].dtype == torch.int64
    assert tagged(inputs) == {2: 1, 5: 3, 8: 2}
    assert inputs["token_regions"][1].tolist() == [-1] * 13


def test_every_piece_of_a_word_is_tagged():
    # [CLS] dog ##s run ##ning [SEP]
    tags = [span("dogs running", "dogs", regions=[0])]
    assert read_tags(tags, 1, text="dogs running") == {1: 1, 2: 1}


def test_the_first_of_two_tags_counts():
    tags = [span(TEXT, "man and", regions=[1]), span(TEXT, "and a dog", regions=[0])]
    assert read_tags(tags, 2) == {2: 2, 3: 2, 4: 1, 5: 1}


def test_tags_follow_truncation():
    tags = [span(TEXT, "man", regions=[0]), span(TEXT, "a dog", regions=[1])]
    assert read_tags(tags, 2, max_length=6) == {2: 1, 4: 2}


def test_tags_follow_regions_that_move_or_are_dropped():
    tags = [span(TEXT, "man", regions=[0]), span(TEXT, "dog", regions=[2])]
    inputs = make_processor(max_regions=2)([TEXT], tags=[tags], region_scores=[[0.1, 0.5, 0.9]], **regions(3))
    assert tagged(inputs) == {5: 2}


def test_pixels_and_an_empty_list_of_tags():
    images = FastRCNNImageProcessor(size={"shortest_edge": 24, "longest_edge": 40})
    processor = VLBertProcessor(make_processor().tokenizer, images)
    given = {"images": np.zeros((30, 40, 3), dtype=np.uint8), "region_boxes": [[0, 0, 1, 1]]}
    assert tagged(processor(TEXT, **given, tags=[span(TEXT, "dog", regions=[0])])) == {5: 1}
    assert tagged(processor(TEXT, **given, tags=[])) == {}
    assert "token_regions" not in processor(TEXT, **given)


WRONG = {
    '{"start": 0, "end": 1}': "Example 0, tag 0, regions",
    '{"start": 0, "end": 1, "regions": [2]}': r"tag 0: regions \[2\]",
    '{"start": 0, "end": 1, "regions": [-1]}': r"tag 0: regions \[-1\]",
    '{"start": 0, "end": 1, "regions": [true]}': r"tag 0: regions \[True\]",
    '{"start": 0, "end": 1, "regions": [1.0]}': r"tag 0: regions \[1\.0\]",
    '{"start": 0, "end": 99, "regions": [0]}': "tag 0: characters 0 to 99 are outside its text",
    '{"sentence": 1, "start": 0, "end": 1, "regions": [0]}': "tag 0: sentence is 1",
    '{"start": 0, "regions": [0]}': "tag 0: start and end are 0 and None",
    "3": "tag 0: 3 is not a dictionary",
}


@pytest.mark.parametrize("tag, message", WRONG.items())
def test_wrong_tags_are_named(tag, message):
    with pytest.raises(ValueError, match=message):
        read_tags([json.loads(tag)], 2)


def test_tags_need_regions():
    tags = [span(TEXT, "dog", regions=[0])]
    with pytest.raises(ValueError, match="tags are given without region_features or images"):
        make_processor()(TEXT, tags=tags)
    with pytest.raises(ValueError, match="tags has 1 entries, but `text` has 2"):
        make_processor()([TEXT, TEXT], tags=[[]], **regions(1, 1))
    of_first = {name: [*value, None] for name, value in regions(1).items()}
    with pytest.raises(ValueError, match="Example 1, tag 0: regions"):
        make_processor()([TEXT, TEXT], tags=[[], tags], **of_first)

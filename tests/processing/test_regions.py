# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import json

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from tests.helpers.closeness import assert_same
from tests.helpers.processing_helpers import FEATURE_SIZE, make_processor

BOXES = np.array([[0.0, 0.0, 0.5, 0.5], [0.25, 0.5, 1.0, 1.0], [0.1, 0.2, 0.3, 0.4]], dtype=np.float32)


def features(count, seed=0):
    return np.random.default_rng(seed).random((count, FEATURE_SIZE)).astype(np.float16)


def test_whole_image_comes_first_and_padding_is_masked():
    given = [features(2), features(3, 1)]
    inputs = make_processor()(["a", "a man"], region_features=given, region_boxes=[BOXES[:2], BOXES])
    found = inputs["region_features"]
    boxes = inputs["region_boxes"]
    assert found.shape == (2, 4, FEATURE_SIZE)
    assert found.dtype == boxes.dtype == torch.float32
    assert boxes[:, 0].tolist() == [[0, 0, 1, 1]] * 2
    for example, array in enumerate(given):
        columns = slice(1, 1 + len(array))
        assert_allclose(found[example, 0], array.astype(float).mean(0), rtol=1e-6)
        assert_array_equal(found[example, columns], array)
        assert_array_equal(boxes[example, columns], BOXES[: len(array)])
    assert inputs["region_attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert inputs["region_candidate_mask"].tolist() == [[False, True, True, False], [False, True, True, True]]
    assert inputs["region_attention_mask"].dtype == torch.int64
    assert not found[0, 3].any()
    assert not boxes[0, 3].any()


def test_given_image_features_replace_the_mean():
    whole = np.arange(FEATURE_SIZE, dtype=np.float32)
    batch = {"region_features": [features(2), features(2)], "region_boxes": [BOXES[:2]] * 2}
    inputs = make_processor()(["a", "a"], **batch, image_features=[whole, None])
    assert_array_equal(inputs["region_features"][0, 0], whole)
    assert_allclose(inputs["region_features"][1, 0], features(2).mean(axis=0, dtype=np.float32), rtol=1e-5)


@pytest.mark.parametrize("convert", [torch.tensor, lambda array: torch.tensor(array).bfloat16(), np.ndarray.tolist])
def test_kinds_of_arrays(convert):
    array = torch.tensor(np.stack([features(3), features(3, 1)])).bfloat16().float().numpy()
    boxes = np.stack([BOXES, BOXES])
    expected = make_processor()(["a", "a"], region_features=list(array), region_boxes=list(boxes))
    found = make_processor()(["a", "a"], region_features=convert(array), region_boxes=torch.tensor(boxes))
    assert_same(found, expected)


def test_pixel_boxes_are_divided_by_their_own_image_size():
    sizes = np.array([(200, 100), (640, 480)])
    pixels = BOXES * np.tile(sizes, 2)[:, None]
    inputs = make_processor()(["a", "a"], region_features=[features(3)] * 2, region_boxes=pixels, image_sizes=sizes)
    for boxes in inputs["region_boxes"]:
        assert_allclose(boxes[1:], BOXES, atol=1e-6)


def test_small_overshoot_is_clipped():
    boxes = [[-0.0005, 0.1, 1.0005, 0.9]]
    inputs = make_processor()("a", region_features=features(1), region_boxes=boxes)
    assert_allclose(inputs["region_boxes"][0, 1], [0, 0.1, 1, 0.9], atol=1e-7)


def test_max_regions_keeps_the_first_or_the_best_in_their_order():
    given = features(3)
    processor = make_processor(max_regions=2)
    batch = {"region_features": given, "region_boxes": BOXES}
    first = processor("a", **batch)["region_features"][0]
    best = processor("a", **batch, region_scores=[0.2, 0.1, 0.9])["region_features"][0]
    assert_array_equal(first[1:], given[[0, 1]])
    assert_array_equal(best[1:], given[[0, 2]])
    # The image's own feature does not depend on how many regions are kept.
    assert_allclose(first[0], given.mean(axis=0, dtype=np.float32), rtol=1e-5)


def test_examples_without_image_or_without_regions():
    inputs = make_processor()(
        ["a", "a", "a"], region_features=[None, features(0), features(1)], region_boxes=[None, [], BOXES[:1]]
    )
    assert inputs["region_attention_mask"].tolist() == [[0, 0], [1, 0], [1, 1]]
    assert inputs["region_boxes"][:2, 0].tolist() == [[0, 0, 0, 0], [0, 0, 1, 1]]
    assert not inputs["region_features"][:2].any()


ZEROS = "[0, 0, 0, 0, 0, 0]"
WRONG_REGIONS = {
    '{"region_features": [[0, 0], [0, 0], [0, 0]]}': r"region features of shape \(3, 2\)",
    f'{{"region_features": [{ZEROS}, {ZEROS}, [0, 0, 0, 0, Infinity, 0]]}}': "NaN or infinity .* region 2",
    '{"region_features": [[true, false], [true, false], [true, false]]}': "region_features: values of type bool",
    '{"region_features": [[null], [null], [null]]}': "region_features: values of type object",
    '{"region_boxes": [[0, 0, 1, 1], [0, 0, 1, 1]]}': r"boxes of shape \(2, 4\) for 3 regions",
    '{"region_boxes": [[0, 0, 1, 1], [0, 0, NaN, 1], [0, 0, 1, 1]]}': "region 1: .* NaN",
    '{"region_boxes": [[0, 0, 1, 1], [0.25, 0.5, 0.2, 1], [0, 0, 1, 1]]}': "region 1: .* inverted",
    '{"region_boxes": [[0, 0, 1, 1], [0, 0, 1, 1], [-0.01, 0, 1, 1]]}': "region 2: .* outside the image",
    '{"region_boxes": [[0, 0, 150, 150], [0, 0, 1, 1], [0, 0, 1, 1]]}':
        r"region 0: .* outside .* pixel boxes need image_sizes",
    '{"region_boxes": [["0", "0", "1", "1"]]}': "region_boxes: values of type <U.*, such as .*'0",
    '{"region_boxes": [[0, 0, 1, 1], [0, 0, 1]]}': "region_boxes: .* in rows of equal length",
    '{"image_features": [0, 0, 0, 0, 0]}': r"image feature of shape \(5,\)",
    '{"image_features": [NaN, 0, 0, 0, 0, 0]}': "NaN or infinity .* whole-image feature",
    '{"image_features": ["a", "a", "a", "a", "a", "a"]}': "image_features: values of type <U1",
    '{"region_scores": ["1", "2", "3"]}': "region_scores: values of type <U1",
    '{"region_scores": [1.0, 2.0]}': r"region_scores of shape \(2,\) for 3 regions",
}  # fmt: skip


@pytest.mark.parametrize("wrong, message", WRONG_REGIONS.items())
def test_wrong_regions_are_named(wrong, message):
    good = {"region_features": features(3), "region_boxes": BOXES, "region_scores": [1, 2, 3], "image_features": None}
    second = good | json.loads(wrong)
    batch = {name: [value, second[name]] for name, value in good.items()}
    with pytest.raises(ValueError, match=f"Example 1[:,] {message}"):
        make_processor()(["a", "a"], **batch)


WRONG_SIZES = {
    '{"image_sizes": [640, 480]}': r"all its boxes are within \[0, 1\]",
    '{"image_sizes": [Infinity, 480]}': r"image size \[inf, 480\]",
    '{"image_sizes": ["640", "480"]}': "Example 0: image_sizes: values of type <U3",
    '{"image_sizes": [640, 0]}': r"image size \[640, 0\]",
    '{"image_sizes": [640, 480], "region_boxes": [[0, 0, 350, 350], [0, 0, 700, 700], [0, 0, 9, 9]]}':
        r"outside the image.* after division",
}  # fmt: skip


@pytest.mark.parametrize("wrong, message", WRONG_SIZES.items())
def test_sizes_that_do_not_fit_the_boxes(wrong, message):
    given = {"region_features": features(3), "region_boxes": BOXES} | json.loads(wrong)
    with pytest.raises(ValueError, match=message):
        make_processor()("a", **given)


def test_features_and_boxes_need_each_other():
    with pytest.raises(ValueError, match="without region_boxes"):
        make_processor()("a", region_features=features(3))
    with pytest.raises(ValueError, match="region_boxes given without region_features"):
        make_processor()("a", region_boxes=BOXES)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes and features of any image: suppression, choice, the detectors of transformers, given boxes, feature models."""

import json
from functools import cache
from unittest import mock

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close
from transformers import AutoImageProcessor, ResNetConfig

from grounded_attention.modeling.region_feature_models import load_region_features
from grounded_attention.processing.region_boxes import box_iou
from grounded_attention.processing.region_detection import Detections, GivenBoxes, RegionDetector, load_detector
from grounded_attention.processing.region_extraction import (
    BackbonePixels,
    RegionExtractor,
    clip_boxes,
    greedy_suppression,
    load_feature_processor,
    select_regions,
    suppress,
)
from tests.helpers.plain_overlap import plain_iou
from tests.helpers.tiny_backbone import save_backbone
from tests.helpers.tiny_detectors import BUILDERS, ZERO_SHOT, save_detector
from tests.helpers.tiny_pictures import picture

QUERIES = ["a cat", "dog", "red ball"]


def random_boxes(count, seed=0):
    source = np.random.default_rng(seed)
    corner = source.random((count, 2)) * 60
    boxes = np.concatenate([corner, corner + source.random((count, 2)) * 40], axis=1)
    return torch.from_numpy(boxes), torch.from_numpy(source.integers(0, 20, count) / 20)


IMAGES = [picture(80, 60, 1), picture(60, 90, 2), picture(80, 60, 3)]

# Suppression and choice


def brute_force(boxes, scores, threshold):
    kept = []
    for index in sorted(range(len(boxes)), key=lambda i: (-scores[i], i)):
        if all(plain_iou(boxes[index], boxes[other]) <= threshold for other in kept):
            kept.append(index)
    return kept


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("suppression", [suppress, greedy_suppression])
def test_suppression_keeps_what_brute_force_keeps(suppression, threshold):
    for seed in range(5):
        boxes, scores = random_boxes(60, seed)
        expected = brute_force(boxes.tolist(), scores.tolist(), threshold)
        assert suppression(boxes, scores, threshold).tolist() == expected


def test_equal_boxes_leave_the_first_of_the_best():
    boxes = torch.tensor([[0.0, 0, 4, 4]] * 3 + [[4.0, 4, 8, 8]])
    assert suppress(boxes, torch.tensor([0.5, 0.9, 0.9, 0.1]), 0.7).tolist() == [1, 3]
    assert suppress(boxes[:0], torch.zeros(0), 0.5).tolist() == []


def test_boxes_of_no_area_overlap_nothing():
    boxes = torch.tensor([[1.0, 1, 1, 5], [1.0, 1, 1, 5], [0.0, 0, 6, 6]])
    assert box_iou(boxes, boxes).tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    "fewest, most, threshold, expected", [(2, 15, 0.5, 11), (3, 15, 2.0, 3), (2, 6, 0.0, 6), (30, 40, 0.5, 20)]
)
def test_the_number_of_regions_follows_scores_within_its_limits(fewest, most, threshold, expected):
    left = torch.arange(20.0)
    boxes = torch.stack([left, 0 * left, left + 1, 0 * left + 1], dim=1)
    scores = torch.linspace(1, 0.05, 20)  # 11 are 0.5 or more
    chosen = select_regions(boxes, scores, fewest, most, score_threshold=threshold)
    assert chosen.tolist() == [*range(expected)]


CLIPPED = {
    "[-5, -5, 5, 5]": "[0, 0, 5, 5]",
    "[9, 2, 30, 8]": "[9, 2, 11, 8]",
    "[12, 0, 20, 5]": "null",
    "[3, 3, 3.5, 9]": "null",
    "[8, 8, 2, 9]": "null",
    "[NaN, 0, 1, 1]": "null",
}


@pytest.mark.parametrize("box, expected", CLIPPED.items())
def test_clipping_drops_boxes_without_area_in_the_image(box, expected):
    (clipped,), (usable,) = clip_boxes(torch.tensor([json.loads(box)]), 11, 10)
    found = clipped.tolist() if usable else None
    assert found == json.loads(expected)


# Detectors


@pytest.fixture(scope="module")
def detectors(tmp_path_factory):
    """Kind -> a detector loaded from its folder, built on first use."""

    @cache
    def get(kind):
        folder = save_detector(kind, tmp_path_factory.mktemp(kind))
        return load_detector(str(folder), QUERIES if kind in ZERO_SHOT else None)

    return get


@pytest.mark.parametrize("kind", BUILDERS)
def test_every_detector_gives_regions_inside_the_image(detectors, kind):
    extractor = RegionExtractor(detectors(kind), min_regions=2, max_regions=5)
    for image, regions in zip(IMAGES, extractor.extract(IMAGES, ["a", "b", "c"]), strict=True):
        boxes = regions.boxes
        assert (regions.width, regions.height) == image.size
        assert regions.features is None
        assert 1 <= len(regions) <= 5
        assert boxes.dtype == np.float32
        assert boxes.min() >= 0
        assert boxes.max() <= 1
        assert (boxes[:, :2] < boxes[:, 2:]).all()
        assert (np.diff(regions.scores) <= 0).all()
        assert regions.label_names == (QUERIES if kind in ZERO_SHOT else ["cat", "dog", "ball"])
        assert {*map(regions.label, range(len(regions)))} <= {*regions.label_names}


@pytest.mark.parametrize("kind", ["detr", "yolos"])
def test_softmax_detectors_give_their_distribution_with_no_object_first(detectors, kind):
    found = detectors(kind).detect([picture(80, 60)])[0]
    shares = found.class_probs
    best, classes = shares[:, 1:].max(-1)
    assert shares.shape == (len(found), 4)
    assert_close(shares.sum(-1), torch.ones(len(found)))
    assert_close(best, found.scores)
    assert torch.equal(classes, found.classes)


@pytest.mark.parametrize("kind", ["rt_detr", "conditional_detr"])
def test_detectors_with_independent_scores_give_no_distribution(detectors, kind):
    assert detectors(kind).detect([picture(80, 60)])[0].class_probs is None


def test_grounding_dino_classes_are_the_queries_with_the_best_token(detectors):
    detector = detectors("grounding_dino")
    image = picture(80, 60)
    found = detector.detect([image])[0]
    inputs = detector.processor(images=[image], text=[QUERIES], return_tensors="pt")
    with torch.no_grad():
        logits = detector.model(**inputs).logits[0]
    words = detector.processor.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    assert words == "[CLS] a cat . dog . red ball . [SEP]".split()
    queries = [logits[:, 1:3], logits[:, 4:5], logits[:, 6:8]]
    best = torch.stack([tokens.amax(-1) for tokens in queries])
    assert torch.equal(found.classes, best.argmax(0))


def test_a_query_with_a_special_token_is_words(detectors):
    found = detectors("grounding_dino")
    detector = RegionDetector(found.model, found.processor, ["a cat", "[SEP] dog"])
    ids = detector._inputs([picture(80, 60)])["input_ids"][0]
    assert found.processor.tokenizer.decode(ids) == "[CLS] a cat. [UNK] [UNK] [UNK] dog. [SEP]"
    assert set(detector.detect([picture(80, 60)])[0].classes.tolist()) <= {0, 1}


def test_an_image_does_not_depend_on_the_others_of_its_batch(detectors):
    extractor = RegionExtractor(detectors("rt_detr"), batch_size=2)
    for image, together in zip(IMAGES, extractor.extract(IMAGES), strict=True):
        (alone,) = extractor.extract([image])
        assert_allclose(alone.boxes, together.boxes, atol=1e-5)
    assert extractor.extract([]) == []


def test_provenance_depends_on_weights_and_options_but_not_on_paths(tmp_path):
    first = load_detector(str(save_detector("yolos", tmp_path / "a" / "yolos")))
    moved = load_detector(str(save_detector("yolos", tmp_path / "b" / "yolos")))
    other = load_detector(str(save_detector("yolos", tmp_path / "c" / "yolos", 1)))
    provenance = RegionExtractor(first).provenance
    assert provenance == RegionExtractor(moved).provenance
    assert first.provenance.pop("weights") != other.provenance.pop("weights")
    assert first.provenance == other.provenance
    assert provenance != RegionExtractor(first, nms_threshold=0.5).provenance


WRONG_QUERIES = {
    "null": "needs queries",
    '["cat", " "]': "is empty",
    '["cat. dog"]': "contains a period",
    '["cat", "Cat"]': "occurs twice",
    '"cat"': "must be a list",
}


@pytest.mark.parametrize("queries, problem", WRONG_QUERIES.items())
def test_queries_that_do_not_fit_are_refused(tmp_path, queries, problem):
    with pytest.raises(ValueError, match=problem):
        load_detector(str(save_detector("owlvit", tmp_path)), json.loads(queries))


def test_queries_for_fixed_classes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="has fixed classes"):
        load_detector(str(save_detector("yolos", tmp_path)), QUERIES)


def test_models_other_than_detectors_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"Detector .*nowhere.* cannot be used"):
        load_detector(str(tmp_path / "nowhere"))
    save_backbone(tmp_path)
    with pytest.raises(ValueError, match="type resnet, which is not an object detector"):
        load_detector(str(tmp_path))


# Given boxes, and images without any


def extract_given(record, **options):
    return RegionExtractor(GivenBoxes({"1": record}), **options).extract([picture(80, 60)], ["1"])[0]


def test_given_boxes_stay_as_they_are():
    record = '{"boxes": [[0, 0, 10, 10], [0, 0, 10, 10], [5, 5, 80.5, 20]], "labels": ["dog", "cat", "dog"]}'
    regions = extract_given(json.loads(record))
    cut = json.loads(record.replace("80.5", "80"))
    assert_allclose(regions.boxes * [80, 60, 80, 60], cut["boxes"])
    assert [*map(regions.label, range(3))] == cut["labels"]
    assert (regions.scores == 1).all()


@pytest.mark.parametrize("feature_model", [False, True])
@pytest.mark.parametrize("count", [1, 5])
def test_given_boxes_below_a_pixel_keep_their_places(feature_model, count, tmp_path):
    given = "[[20, 20, 20, 50], [5, 5, 30, 30], [79.5, 10, 80.9, 10.2], [80.5, 60.5, 81, 61], [-1, -1, 0, 0]]"
    expected = "[[20, 20, 21, 50], [5, 5, 30, 30], [79, 10, 80, 11], [79, 59, 80, 60], [0, 0, 1, 1]]"
    options = {}
    if feature_model:
        name = save_backbone(tmp_path)
        options = {"features": load_region_features(name), "feature_processor": load_feature_processor(name)}
    regions = extract_given({"boxes": json.loads(given)[:count]}, **options)
    assert_allclose(regions.boxes * [80, 60, 80, 60], json.loads(expected)[:count], atol=1e-4)


def test_the_best_of_too_many_given_boxes_stay_in_order():
    record = '{"boxes": [[0, 0, 5, 5], [1, 0, 6, 5], [2, 0, 7, 5], [3, 0, 8, 5]], "scores": [0.1, 0.9, 0.5, 0.8]}'
    regions = extract_given(json.loads(record), min_regions=1, max_regions=2)
    assert regions.scores.tolist() == pytest.approx([0.9, 0.8])


GIVEN = {
    '{"boxes": [[0, 0, 90, 10]]}': r"'1': box 0: found \[0.0, 0.0, 90.0, 10.0\]",
    '{"boxes": [[0, 0, 5, 5], [9, 0, 5, 5]]}': "box 1",
    '{"boxes": [[0, 0, 0.5, 1.0000001]]}': "look divided by the size",
    '{"boxes": [[0, 0, 5, 5]], "scores": [1, 2]}': "1 boxes, 2 scores",
}


@pytest.mark.parametrize("record, problem", GIVEN.items())
def test_given_boxes_that_do_not_fit_are_refused(record, problem):
    with pytest.raises(ValueError, match=problem):
        extract_given(json.loads(record))


@pytest.mark.parametrize(
    "image, ids, problem",
    [
        (picture(80, 60), ["2"], "No boxes are given for image '2'"),
        (picture(80, 60), None, "give image_ids"),
        (picture(80, 60), ["1", "2"], "1 images have 2 ids"),
        ("nowhere.png", ["1"], "nowhere"),
    ],
)
def test_images_that_cannot_be_read_and_missing_ids_are_refused(image, ids, problem):
    with pytest.raises(ValueError, match=problem):
        RegionExtractor(GivenBoxes({"1": {"boxes": [[0, 0, 5, 5]]}})).extract([image], ids)


def test_an_image_without_detections_keeps_the_whole_image():
    empty = torch.tensor([[5.0, 5, 5, 9]])
    detections = Detections(empty, torch.ones(1), torch.zeros(1).long(), torch.tensor([[0.2, 0.8]]))
    detector = mock.Mock(label_names=["cat"], selected=False, provenance={})
    detector.detect.return_value = [detections]
    (regions,) = RegionExtractor(detector).extract([picture(80, 60)])
    assert regions.boxes.tolist() == [[0, 0, 1, 1]]
    assert regions.scores.tolist() == [0]
    assert regions.class_probs.tolist() == [[1, 0]]


@pytest.mark.parametrize(
    "options",
    [
        '{"min_regions": 0}',
        '{"max_regions": 4}',
        '{"nms_threshold": 2}',
        '{"score_threshold": 2}',
        '{"score_threshold": NaN}',
        '{"score_threshold": Infinity}',
        '{"batch_size": 0}',
    ],
)
def test_options_outside_their_range_are_refused(options):
    with pytest.raises(ValueError, match="expected 1 <= min_regions"):
        RegionExtractor(GivenBoxes({}), **{"min_regions": 5, **json.loads(options)})


# Features


def test_features_are_those_of_each_image_and_box_alone(tmp_path):
    torch.manual_seed(0)
    name = save_backbone(tmp_path)
    features = load_region_features(name)
    processor = load_feature_processor(name)
    records = """{"a": {"boxes": [[0, 0, 40, 30], [10, 10, 80, 60]]}, "b": {"boxes": [[0, 0, 60, 60]]},
        "c": {"boxes": [[0, 0, 30, 30]]}}"""
    given = GivenBoxes(json.loads(records))
    extractor = RegionExtractor(given, features, processor)
    assert extractor.feature_size == 12 == extractor.provenance["features"]["feature_size"]
    for image, regions in zip(IMAGES, extractor.extract(IMAGES, ["a", "b", "c"]), strict=True):
        inputs = processor([image])
        scale = inputs["image_sizes"][0].repeat(2)
        for box, feature in zip(regions.boxes, regions.features, strict=True):
            pixels = torch.from_numpy(box) * scale
            with torch.no_grad():
                alone = features(inputs["pixel_values"], pixels[None, None])
            assert_allclose(feature, alone.region_features[0, 0], rtol=1e-4, atol=1e-5)


def test_backbone_pixels_are_normalised_as_its_processor_does_and_never_cropped(tmp_path):
    processor = AutoImageProcessor.from_pretrained(save_backbone(tmp_path))
    image = picture(64, 64)
    ours = BackbonePixels.from_image_processor(processor)
    expected = processor(image, return_tensors="pt")["pixel_values"]
    assert_close(ours(image)["pixel_values"], expected, atol=1e-5, rtol=1e-5)
    assert ours(picture(40, 20))["image_sizes"].tolist() == [[107, 53]]
    assert ours([picture(80, 64), picture(64, 80)])["pixel_values"].shape == (2, 3, 80, 80)


def test_feature_models_without_processor_or_at_all_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"Feature model .* cannot be used"):
        load_feature_processor(str(tmp_path / "nowhere"))
    ResNetConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no image processor"):
        load_feature_processor(str(tmp_path))
    with pytest.raises(ValueError, match="needs its image processor"):
        RegionExtractor(GivenBoxes({}), object())

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes and features of any image: suppression, choice, the detectors of transformers, given boxes, feature models."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, ResNetConfig

from grounded_attention.modeling.region_feature_models import load_region_features
from grounded_attention.processing.feature_pixels import BackbonePixels, load_feature_processor
from grounded_attention.processing.region_boxes import box_iou
from grounded_attention.processing.region_detection import Detections, GivenBoxes, RegionDetector, load_detector
from grounded_attention.processing.region_extraction import (
    RegionExtractor,
    clip_boxes,
    greedy_suppression,
    select_regions,
    suppress,
)
from tests.helpers.tiny_backbone import save_backbone
from tests.helpers.tiny_detectors import BUILDERS, ZERO_SHOT, save_detector

QUERIES = ["a cat", "dog", "red ball"]


def picture(width, height, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def random_boxes(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator) * 60
    boxes = torch.cat([corner, corner + torch.rand(count, 2, generator=generator) * 40], dim=1)
    return boxes, torch.randint(0, 20, (count,), generator=generator) / 20


# Suppression and choice


def brute_force(boxes, scores, threshold):
    kept = []
    for index in sorted(range(len(boxes)), key=lambda i: (-scores[i], i)):
        if all(overlap(boxes[index], boxes[other]) <= threshold for other in kept):
            kept.append(index)
    return kept


def overlap(first, second):
    width = max(0.0, min(first[2], second[2]) - max(first[0], second[0]))
    height = max(0.0, min(first[3], second[3]) - max(first[1], second[1]))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
    if width * height:
        return width * height / (sum(areas) - width * height)
    return 0.0


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("suppression", [suppress, greedy_suppression])
def test_suppression_keeps_what_brute_force_keeps(suppression, threshold):
    for seed in range(5):
        boxes, scores = random_boxes(60, seed)
        assert suppression(boxes, scores, threshold).tolist() == brute_force(
            boxes.tolist(), scores.tolist(), threshold
        )


def test_equal_boxes_leave_the_first_of_the_best():
    boxes = torch.tensor([[0.0, 0, 4, 4]] * 3 + [[4.0, 4, 8, 8]])
    assert suppress(boxes, torch.tensor([0.5, 0.9, 0.9, 0.1]), 0.7).tolist() == [1, 3]
    assert suppress(boxes[:0], torch.zeros(0), 0.5).tolist() == []


def test_boxes_of_no_area_overlap_nothing():
    boxes = torch.tensor([[1.0, 1, 1, 5], [1.0, 1, 1, 5], [0.0, 0, 6, 6]])
    assert box_iou(boxes, boxes).tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 1]]


def test_the_number_of_regions_follows_scores_within_its_limits():
    boxes = torch.stack([torch.tensor([i, 0, i + 1, 1]) for i in range(20)]).float()
    scores = torch.linspace(1, 0.05, 20)
    assert len(select_regions(boxes, scores, 2, 15, score_threshold=0.5)) == int((scores >= 0.5).sum())
    assert select_regions(boxes, scores, 3, 15, score_threshold=2.0).tolist() == [0, 1, 2]
    assert len(select_regions(boxes, scores, 2, 6, score_threshold=0.0)) == 6
    assert len(select_regions(boxes[:4], scores[:4], 10, 15)) == 4


def test_clipping_drops_boxes_without_area_in_the_image():
    boxes = torch.tensor(
        [[-5.0, -5, 5, 5], [9, 2, 30, 8], [12, 0, 20, 5], [3, 3, 3.5, 9], [8, 8, 2, 9], [float("nan"), 0, 1, 1]]
    )
    clipped, usable = clip_boxes(boxes, 11, 10)
    assert usable.tolist() == [True, True, False, False, False, False]
    assert clipped[usable].tolist() == [[0, 0, 5, 5], [9, 2, 11, 8]]


# Detectors


@pytest.fixture(scope="module")
def detectors(tmp_path_factory):
    """Kind -> a detector loaded from its folder, built on first use."""
    loaded = {}

    def get(kind):
        if kind not in loaded:
            folder = save_detector(kind, tmp_path_factory.mktemp(kind))
            loaded[kind] = load_detector(str(folder), QUERIES if kind in ZERO_SHOT else None)
        return loaded[kind]

    return get


@pytest.mark.parametrize("kind", BUILDERS)
def test_every_detector_gives_regions_inside_the_image(detectors, kind):
    detector = detectors(kind)
    images = [picture(80, 60, 1), picture(60, 90, 2), picture(80, 60, 3)]
    extractor = RegionExtractor(detector, min_regions=2, max_regions=5)
    for image, regions in zip(images, extractor.extract(images, ["a", "b", "c"]), strict=True):
        assert (regions.width, regions.height) == image.size
        assert regions.features is None
        assert 1 <= len(regions) <= 5
        assert regions.boxes.dtype == np.float32
        assert (regions.boxes >= 0).all()
        assert (regions.boxes <= 1).all()
        assert (regions.boxes[:, :2] < regions.boxes[:, 2:]).all()
        assert (np.diff(regions.scores) <= 0).all()
        assert regions.label_names == (QUERIES if kind in ZERO_SHOT else ["cat", "dog", "ball"])
        assert all(regions.label(index) in regions.label_names for index in range(len(regions)))


@pytest.mark.parametrize("kind", ["detr", "yolos"])
def test_softmax_detectors_give_their_distribution_with_no_object_first(detectors, kind):
    detector = detectors(kind)
    found = detector.detect([picture(80, 60)])[0]
    assert found.class_probs.shape == (len(found), 4)
    torch.testing.assert_close(found.class_probs.sum(-1), torch.ones(len(found)))
    torch.testing.assert_close(found.class_probs[:, 1:].max(-1).values, found.scores)
    assert found.class_probs[:, 1:].argmax(-1).tolist() == found.classes.tolist()


def test_detectors_with_independent_scores_give_no_distribution(detectors):
    assert detectors("rt_detr").detect([picture(80, 60)])[0].class_probs is None
    assert detectors("conditional_detr").detect([picture(80, 60)])[0].class_probs is None


def test_grounding_dino_classes_are_the_queries_with_the_best_token(detectors):
    detector = detectors("grounding_dino")
    image = picture(80, 60)
    found = detector.detect([image])[0]
    inputs = detector.processor(images=[image], text=[QUERIES], return_tensors="pt")
    with torch.no_grad():
        logits = detector.model(**inputs).logits[0]
    words = detector.processor.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    assert words == ["[CLS]", "a", "cat", ".", "dog", ".", "red", "ball", ".", "[SEP]"]
    best = torch.stack([logits[:, 1:3].amax(-1), logits[:, 4], logits[:, 6:8].amax(-1)], dim=-1)
    assert found.classes.tolist() == best.argmax(-1).tolist()


def test_a_query_with_a_special_token_is_words(detectors):
    found = detectors("grounding_dino")
    detector = RegionDetector(found.model, found.processor, ["a cat", "[SEP] dog"])
    words = found.processor.tokenizer.convert_ids_to_tokens(detector._inputs([picture(80, 60)])["input_ids"][0])
    assert (words.count("[SEP]"), words.count("[UNK]"), words[-1]) == (1, 3, "[SEP]")
    assert {*detector.detect([picture(80, 60)])[0].classes.tolist()} <= {0, 1}


def test_an_image_does_not_depend_on_the_others_of_its_batch(detectors):
    images = [picture(80, 60, 1), picture(60, 90, 2), picture(80, 60, 3)]
    extractor = RegionExtractor(detectors("rt_detr"), batch_size=2)
    together = extractor.extract(images)
    for image, expected in zip(images, together, strict=True):
        alone = extractor.extract([image])[0]
        np.testing.assert_allclose(alone.boxes, expected.boxes, atol=1e-5)
    assert extractor.extract([]) == []


def test_provenance_depends_on_weights_and_options_but_not_on_paths(tmp_path):
    first = load_detector(str(save_detector("yolos", tmp_path / "a" / "yolos", 0)))
    moved = load_detector(str(save_detector("yolos", tmp_path / "b" / "yolos", 0)))
    other = load_detector(str(save_detector("yolos", tmp_path / "c" / "yolos", 1)))
    assert RegionExtractor(first).provenance == RegionExtractor(moved).provenance
    assert {key for key in first.provenance if first.provenance[key] != other.provenance[key]} == {"weights"}
    assert RegionExtractor(first).provenance != RegionExtractor(first, nms_threshold=0.5).provenance


@pytest.mark.parametrize(
    "kind, queries, problem",
    [
        ("yolos", ["a cat"], "has fixed classes"),
        ("owlvit", None, "needs queries"),
        ("owlvit", ["cat", " "], "is empty"),
        ("owlvit", ["cat. dog"], "contains a period"),
        ("owlvit", ["cat", "Cat"], "occurs twice"),
        ("owlvit", "cat", "must be a list"),
    ],
)
def test_queries_that_do_not_fit_are_refused(tmp_path, kind, queries, problem):
    with pytest.raises(ValueError, match=problem):
        load_detector(str(save_detector(kind, tmp_path)), queries)


def test_models_other_than_detectors_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"Detector .*nowhere.* cannot be used"):
        load_detector(str(tmp_path / "nowhere"))
    save_backbone(tmp_path)
    with pytest.raises(ValueError, match="type resnet, which is not an object detector"):
        load_detector(str(tmp_path))


# Given boxes, and images without any


def test_given_boxes_stay_as_they_are():
    records = {"1": {"boxes": [[0, 0, 10, 10], [0, 0, 10, 10], [5, 5, 80.5, 20]], "labels": ["dog", "cat", "dog"]}}
    regions = RegionExtractor(GivenBoxes(records)).extract([picture(80, 60)], ["1"])[0]
    np.testing.assert_allclose(regions.boxes * [80, 60, 80, 60], [[0, 0, 10, 10], [0, 0, 10, 10], [5, 5, 80, 20]])
    assert [regions.label(i) for i in range(3)] == ["dog", "cat", "dog"]
    assert regions.scores.tolist() == [1, 1, 1]


@pytest.mark.parametrize("feature_model", [False, True])
def test_given_boxes_below_a_pixel_keep_their_places(feature_model, tmp_path):
    boxes = [[20, 20, 20, 50], [5, 5, 30, 30], [79.5, 10, 80.9, 10.2], [80.5, 60.5, 81, 61], [-1, -1, 0, 0]]
    expected = [[20, 20, 21, 50], [5, 5, 30, 30], [79, 10, 80, 11], [79, 59, 80, 60], [0, 0, 1, 1]]
    name = save_backbone(tmp_path) if feature_model else None
    parts = (load_region_features(name), load_feature_processor(name)) if feature_model else ()
    for few in (1, 5):
        regions = RegionExtractor(GivenBoxes({"1": {"boxes": boxes[:few]}}), *parts).extract([picture(80, 60)], ["1"])[
            0
        ]
        np.testing.assert_allclose(regions.boxes * [80, 60, 80, 60], expected[:few], atol=1e-4)


def test_the_best_of_too_many_given_boxes_stay_in_order():
    records = {"1": {"boxes": [[i, 0, i + 5, 5] for i in range(4)], "scores": [0.1, 0.9, 0.5, 0.8]}}
    extractor = RegionExtractor(GivenBoxes(records), min_regions=1, max_regions=2)
    assert extractor.extract([picture(80, 60)], ["1"])[0].scores.tolist() == pytest.approx([0.9, 0.8])


@pytest.mark.parametrize(
    "record, problem",
    [
        ({"boxes": [[0, 0, 90, 10]]}, r"'1': box 0: found \[0.0, 0.0, 90.0, 10.0\]"),
        ({"boxes": [[0, 0, 5, 5], [9, 0, 5, 5]]}, "box 1"),
        ({"boxes": [[0, 0, 0.5, 1.0000001]]}, "look divided by the size"),
        ({"boxes": [[0, 0, 5, 5]], "scores": [1, 2]}, "1 boxes, 2 scores"),
    ],
)
def test_given_boxes_that_do_not_fit_are_refused(record, problem):
    with pytest.raises(ValueError, match=problem):
        RegionExtractor(GivenBoxes({"1": record})).extract([picture(80, 60)], ["1"])
    with pytest.raises(ValueError, match="No boxes are given for image '2'"):
        RegionExtractor(GivenBoxes({"1": record})).extract([picture(80, 60)], ["2"])
    with pytest.raises(ValueError, match="give image_ids"):
        RegionExtractor(GivenBoxes({"1": record})).extract([picture(80, 60)])


def test_an_image_without_detections_keeps_the_whole_image():
    class Blind:
        label_names = ["cat"]
        selected = False
        provenance = {}

        def detect(self, images, image_ids=None):
            boxes = torch.tensor([[5.0, 5, 5, 9]])
            return [Detections(boxes, torch.ones(1), torch.zeros(1).long(), torch.tensor([[0.2, 0.8]]))]

    regions = RegionExtractor(Blind()).extract([picture(80, 60)])[0]
    assert regions.boxes.tolist() == [[0, 0, 1, 1]]
    assert regions.scores.tolist() == [0]
    assert regions.class_probs.tolist() == [[1, 0]]


@pytest.mark.parametrize(
    "options",
    [
        {"min_regions": 0},
        {"min_regions": 5, "max_regions": 4},
        {"nms_threshold": 2},
        {"score_threshold": 2},
        {"score_threshold": float("nan")},
        {"score_threshold": float("inf")},
        {"batch_size": 0},
    ],
)
def test_options_outside_their_range_are_refused(options):
    with pytest.raises(ValueError, match="expected 1 <= min_regions"):
        RegionExtractor(GivenBoxes({}), **options)


def test_images_that_cannot_be_read_and_missing_ids_are_refused(tmp_path):
    extractor = RegionExtractor(GivenBoxes({}))
    with pytest.raises(ValueError, match="nowhere"):
        extractor.extract([tmp_path / "nowhere.png"], ["1"])
    with pytest.raises(ValueError, match="1 images have 2 ids"):
        extractor.extract([picture(8, 6)], ["1", "2"])


# Features


def test_features_are_those_of_each_image_and_box_alone(tmp_path):
    torch.manual_seed(0)
    name = save_backbone(tmp_path)
    features = load_region_features(name)
    processor = load_feature_processor(name)
    records = {"a": {"boxes": [[0, 0, 40, 30], [10, 10, 80, 60]]}, "b": {"boxes": [[0, 0, 80, 60]]}}
    records["c"] = {"boxes": [[0, 0, 30, 30]]}
    images = [picture(80, 60, 1), picture(80, 60, 2), picture(30, 90, 3)]
    extractor = RegionExtractor(GivenBoxes(records), features, processor)
    found = extractor.extract(images, ["a", "b", "c"])
    assert extractor.feature_size == 12 == extractor.provenance["features"]["feature_size"]
    for image, regions in zip(images, found, strict=True):
        inputs = processor([image])
        size = inputs["image_sizes"][0].tolist()
        for box, feature in zip(regions.boxes, regions.features, strict=True):
            pixels = torch.from_numpy(box * np.tile(size, 2)).float()[None, None]
            with torch.no_grad():
                expected = features(inputs["pixel_values"], pixels).region_features[0, 0]
            np.testing.assert_allclose(feature, expected.numpy(), rtol=1e-4, atol=1e-5)


def test_backbone_pixels_are_normalised_as_its_processor_does_and_never_cropped(tmp_path):
    name = save_backbone(tmp_path)
    processor = AutoImageProcessor.from_pretrained(name)
    image = picture(64, 64)
    ours = BackbonePixels.from_image_processor(processor)
    expected = processor(image, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(ours(image)["pixel_values"], expected, atol=1e-5, rtol=1e-5)
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

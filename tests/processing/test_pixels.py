# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`images=` of the processor: with boxes for a model that makes its features, and with a detector."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grounded_attention.processing import FastRCNNImageProcessor
from tests.helpers.closeness import assert_same
from tests.helpers.processing_helpers import FEATURE_SIZE, make_processor, span
from tests.helpers.tiny_pictures import picture

BOXES = np.array([[0.0, 0.0, 0.5, 0.5], [0.25, 0.5, 1.0, 1.0], [0.1, 0.2, 0.3, 0.4]], dtype=np.float32)
SIZE = {"shortest_edge": 24, "longest_edge": 40}


def pixel_processor(**options):
    return make_processor(image_processor=FastRCNNImageProcessor(size=SIZE), **options)


class Detector:
    """As many regions as the image is wide in tens of pixels; remembers what it saw."""

    def __init__(self, features=True, feature_size=FEATURE_SIZE, lost=0):
        self.features = features
        self.feature_size = feature_size
        self.lost = lost
        self.seen = []

    def extract(self, images):
        self.seen += images
        return [self._regions(image.width // 10) for image in images[self.lost :]]

    def _regions(self, count):
        features = np.arange(count, dtype=np.float16)[:, None].repeat(self.feature_size, 1) if self.features else None
        return SimpleNamespace(boxes=BOXES[:count], scores=np.linspace(0.9, 0.1, count), features=features)


def test_pixels_replace_features():
    """Everything but the features equals the path with features; the pixels equal the image processor's own."""
    texts = ["a man", "a", "a dog"]
    images = [picture(48, 36), picture(30, 60, 1), None]
    processor = pixel_processor(max_regions=2)
    given = {"region_boxes": [BOXES, BOXES[:1], None], "region_scores": [[0.1, 0.2, 0.3], [0.5], None]}
    given["phrases"] = [[span("a man", "man", boxes=[BOXES[2].tolist()])], [span("a", "a", regions=[0])], []]
    found = processor(texts, images=images, **given, max_sequence_length=6)
    features = [np.ones((3, FEATURE_SIZE)), np.ones((1, FEATURE_SIZE)), None]
    expected = processor(texts, region_features=features, **given, max_sequence_length=6)
    assert list(found) == [name for name in processor.model_input_names if name in found]
    pixels = found.pop("pixel_values")
    alone = processor.image_processor(images[:2])
    assert torch.equal(pixels[:2], alone["pixel_values"])
    assert not pixels[2].any()
    assert found.pop("image_sizes").tolist() == [*alone["image_sizes"].tolist(), [0, 0]]
    expected.pop("region_features")
    assert_same(found, expected)


def test_one_image_with_one_text_in_any_form(tmp_path):
    image = picture(30, 24)
    path = tmp_path / "a.png"
    image.save(path)
    expected = pixel_processor()("a", images=image, region_boxes=BOXES)
    for images in ([image], path, str(path), np.asarray(image), [path]):
        found = pixel_processor()("a", images=images, region_boxes=BOXES)
        assert_same(found, expected)
    pixels = pixel_processor()("a", images=image, region_boxes=BOXES * [30, 24, 30, 24], image_sizes=(30, 24))
    torch.testing.assert_close(pixels["region_boxes"], expected["region_boxes"])
    lists = pixel_processor()(["a"], images=[image], region_boxes=[BOXES], return_tensors=None)
    assert np.array_equal(lists["pixel_values"], expected["pixel_values"])


def test_a_batch_without_any_image_still_has_every_key():
    found = pixel_processor()(["a"], images=[None], region_boxes=[None])
    assert found["pixel_values"].shape == (1, 3, 1, 1)
    assert not found["region_attention_mask"].any()


@pytest.mark.parametrize("with_pixels", [False, True])
def test_a_detector_with_features_fills_in_what_was_given_by_hand(with_pixels):
    processor = (pixel_processor if with_pixels else make_processor)(max_regions=2)
    detector = Detector()
    texts = ["a man", "a man", "a dog"]
    found = processor(texts, images=[picture(30, 20), None, picture(10, 20)], detector=detector)
    first = detector._regions(3)
    last = detector._regions(1)
    expected = processor(
        texts,
        region_features=[first.features, None, last.features],
        region_boxes=[first.boxes, None, last.boxes],
        region_scores=[first.scores, None, last.scores],
    )
    assert_same(found, expected)
    assert [image.size for image in detector.seen] == [(30, 20), (10, 20)]
    assert {image.mode for image in detector.seen} == {"RGB"}


def test_a_detector_without_features_gives_boxes_to_the_pixel_path():
    found = pixel_processor()("a", images=picture(30, 20), detector=Detector(features=False))
    expected = pixel_processor()("a", images=picture(30, 20), region_boxes=BOXES)
    assert_same(found, expected)
    with pytest.raises(ValueError, match="boxes without features, and this processor has no image_processor"):
        make_processor()("a", images=picture(30, 20), detector=Detector(features=False))


IMAGE = picture(30, 20)
TWO = [IMAGE, IMAGE]
GIVEN = {"images": TWO, "region_boxes": [BOXES, BOXES]}


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"region_boxes": None}, "images are given without region_boxes and without a detector"),
        ({"images": [IMAGE]}, "images has 1 entries, but `text` has 2"),
        ({"images": IMAGE}, "images: .*, expected a list with an entry for each of 2"),
        ({"images": "a.jpg"}, "images: 'a.jpg', expected a list"),
        ({"images": [IMAGE, "none.jpg"]}, r"Example 1 \(none.jpg\): no such file"),
        ({"images": [IMAGE, None]}, "Example 1: region_boxes without an image"),
        ({"region_boxes": [BOXES, None]}, "Example 1: an image without region_boxes"),
        ({"region_boxes": [BOXES, BOXES[:, :3]]}, r"Example 1: boxes of shape \(3, 3\)"),
        ({"region_boxes": [BOXES, 5]}, r"Example 1: boxes of shape \(\)"),
        ({"region_boxes": [BOXES, "box"]}, "Example 1: region_boxes: values of type <U3"),
        ({"region_boxes": None, "region_features": [1, 2]}, "region_features given together with images"),
        ({"detector": Detector()}, "region_boxes given together with a detector"),
        ({"region_boxes": None, "detector": "detr"}, r"detector: str has no method extract\(images\)"),
        ({"region_boxes": None, "detector": Detector(lost=1)}, "detector returns 1 results for 2 images"),
        (
            {"region_boxes": None, "detector": Detector(feature_size=5)},
            r"Example 0: region features of shape \(3, 5\)",
        ),
        ({"images": None, "region_boxes": None, "detector": Detector()}, "detector is given without images"),
    ],
)
def test_conflicting_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        pixel_processor()(["a", "a"], **{**GIVEN, **arguments})


def test_another_size_than_that_of_the_image_is_refused():
    with pytest.raises(ValueError, match=r"Example 1: image_sizes is \[20, 30\]"):
        pixel_processor()(["a", "a"], images=TWO, region_boxes=[BOXES * 20] * 2, image_sizes=[(30, 20), (20, 30)])


def test_boxes_of_images_need_an_image_processor():
    with pytest.raises(ValueError, match="this processor has no image_processor"):
        make_processor()("a", images=IMAGE, region_boxes=BOXES)


@pytest.mark.parametrize("settings", [{"size": SIZE}, FastRCNNImageProcessor(size=SIZE).to_dict()])
def test_image_processor_may_be_given_as_its_settings(settings):
    assert make_processor(image_processor=settings).image_processor.size == SIZE


@pytest.mark.parametrize("wrong", ["fast_rcnn", {"image_processor_type": "CLIPImageProcessor"}])
def test_another_image_processor_is_refused(wrong):
    with pytest.raises(ValueError, match=r"image_processor: .* expected a FastRCNNImageProcessor"):
        make_processor(image_processor=wrong)

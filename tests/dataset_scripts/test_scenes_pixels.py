# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Painting scenes, detecting in them, and features of pixels."""

import random
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image

from grounded_attention.dataset_scripts.scenes import shapes as scene_shapes
from grounded_attention.dataset_scripts.scenes.features import CLASSES, detect, pixel_features
from grounded_attention.dataset_scripts.scenes.shapes import paint
from grounded_attention.dataset_scripts.scenes.world import BETWEEN_SHAPES, SHAPES, SceneObject, draw_scene
from grounded_attention.utils.boxes import box_iou

SCENES = [draw_scene(random.Random(f"pixels/{number}")) for number in range(150)]


def boxes_of(scene):
    return np.array([scene_shapes.box(item) for item in scene.objects])


def pixels(scene):
    return np.asarray(paint(scene), dtype=int)


def assert_inside(boxes, scene):
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] <= [scene.width, scene.height]).all()


def test_equal_scenes_give_equal_pixels():
    again = draw_scene(random.Random("pixels/0"))
    assert (pixels(again) == pixels(SCENES[0])).all()
    assert (pixels(replace(again, noise_seed=again.noise_seed + 1)) != pixels(SCENES[0])).any()


@pytest.mark.parametrize("shapes", [*((shape,) for shape in SHAPES), *BETWEEN_SHAPES], ids="-".join)
@pytest.mark.parametrize("texture", ["plain", "striped", "dotted"])
def test_box_is_what_painting_the_object_changes(shapes, texture):
    item = SceneObject(shapes, ("blue",), ("large",), (texture,), x=90.3, y=70.7, radius=24.0, tilt=9.0)
    scene = replace(SCENES[0], width=200, height=150, ground="sand", objects=(item,))
    changed = np.abs(pixels(scene) - pixels(replace(scene, objects=()))).sum(axis=2) > 30
    rows, columns = np.nonzero(changed)
    found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert_allclose(found, scene_shapes.box(item), atol=2)


def test_scenes_have_three_objects_or_more_inside_the_image_and_mostly_apart():
    for scene in SCENES:
        assert 2 <= len(scene.objects) <= 6
        boxes = boxes_of(scene)
        assert_inside(boxes, scene)
        overlap = box_iou(boxes, boxes) - np.eye(len(boxes))
        assert overlap.max() < 0.3
    assert np.mean([len(scene.objects) >= 3 for scene in SCENES]) > 0.97


def test_detector_finds_most_objects_among_other_boxes():
    best = []
    surplus = []
    right = []
    for number, scene in enumerate(SCENES):
        found = detect(scene, np.random.default_rng(number))
        assert 8 <= len(found.boxes) <= 14
        assert found.boxes.dtype == np.float32
        assert_inside(found.boxes, scene)
        assert (found.boxes[:, 2:] - found.boxes[:, :2] >= 5.9).all()
        assert found.class_probs.shape == (len(found.boxes), 64)
        assert_allclose(found.class_probs.astype(float).sum(axis=1), 1, atol=0.01)
        overlap = box_iou(found.boxes, boxes_of(scene))
        best.extend(overlap.max(axis=0))
        surplus.append((overlap.max(axis=1) < 0.5).sum())
        for region in np.flatnonzero(overlap.max(axis=1) > 0.7):
            item = scene.objects[overlap[region].argmax()]
            colour, shape = CLASSES[found.classes[region]].split()
            right.append(colour in item.colours and shape in item.shapes)
    missed = np.mean(np.array(best) < 0.5)
    assert 0.01 < missed < 0.09
    assert np.quantile(best, 0.1) > 0.6
    assert np.quantile(best, 0.9) < 0.97
    assert np.mean(surplus) > 2
    assert 0.84 < np.mean(right) < 0.97


@pytest.mark.parametrize("inside", [True, False])
def test_features_depend_only_on_the_pixels_in_the_box(inside):
    image = paint(SCENES[1])
    box = np.array([[30.0, 40.0, 80.0, 90.0]])
    region = np.zeros((image.height, image.width), bool)
    region[38:92, 28:82] = True
    changed = np.array(image)
    changed[region == inside] = 255 - changed[region == inside]
    different = pixel_features(Image.fromarray(changed), box) != pixel_features(image, box)
    assert different.mean() > 0.5 if inside else not different.any()


def test_features_do_not_depend_on_the_other_boxes():
    image = paint(SCENES[3])
    boxes = detect(SCENES[3], np.random.default_rng(0)).boxes
    together = pixel_features(image, boxes)
    alone = np.concatenate([pixel_features(image, box[None]) for box in boxes])
    assert (together == alone).all()

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows, region tables and pictures of one image have one shape; pictures are upright."""

from types import SimpleNamespace

import pytest
from PIL import Image

from grounded_attention.training.loop.data import Collator
from grounded_attention.utils.boxes import same_shape


def record(size, regions=3):
    return SimpleNamespace(width=size[0], height=size[1], boxes=[[0, 0, 1, 1]] * regions)


def row_of(width, height):
    return {"image_id": "7", "caption_id": "7#0", "width": width, "height": height}


def collator(held=None, images=None):
    task = SimpleNamespace(collate=lambda examples, processor: {"examples": examples})
    task.configure = lambda options: task
    return Collator(task, None, None if held is None else {"7": held}, images=images)


@pytest.mark.parametrize("size, other", [((480, 640), (240, 320)), ((500, 333), (1000, 667)), ((64, 64), (64, 64))])
def test_rows_and_tables_of_one_shape_are_joined(size, other):
    assert same_shape(size, other)
    assert collator(record(other))([row_of(*size)])


@pytest.mark.parametrize("size, other", [((480, 640), (640, 480)), ((500, 499), (499, 500))])
def test_rows_and_tables_of_other_shapes_are_refused(size, other):
    assert not same_shape(size, other)
    with pytest.raises(ValueError, match=rf"image 7.*{size[0]} x {size[1]}.*{other[0]} x {other[1]}"):
        collator(record(other))([row_of(*size)])


def test_a_shape_is_not_compared_without_a_size_or_detections():
    assert collator(record((640, 480)))([row_of(None, None)])
    assert collator(record((640, 480)))([{"image_id": "7", "caption_id": "7#0"}])
    assert collator(record((1, 1), 0))([row_of(480, 640)])


def test_pictures_are_upright_and_compared(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (64, 48)).save(tmp_path / "7.jpg", exif=exif)
    assert collator(images=tmp_path)([row_of(48, 64)])["examples"].images[0].size == (48, 64)
    with pytest.raises(ValueError, match=r"image 7.*64 x 48 in the row.*48 x 64 in the picture"):
        collator(images=tmp_path)([row_of(64, 48)])

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows, region tables and pictures of one image have one shape; pictures are upright."""

from types import SimpleNamespace

import pytest
from PIL import Image

from grounded_attention.training.loop.data import Collator
from grounded_attention.utils.boxes import same_shape


def record(size, regions=3):
    return SimpleNamespace(width=size[0], height=size[1], boxes=[[0, 0, 1, 1]] * regions)


def collator(held=None, images=None):
    task = SimpleNamespace(collate=lambda examples, processor: {"examples": examples})
    task.configure = lambda options: task
    return Collator(task, None, None if held is None else {"7": held}, images=images)


@pytest.mark.parametrize(
    ("size", "other", "same"),
    [
        ((480, 640), (640, 480), False),
        ((480, 640), (240, 320), True),
        ((500, 333), (1000, 667), True),
        ((500, 499), (499, 500), False),
        ((64, 64), (64, 64), True),
    ],
)
def test_shapes_of_rows_and_tables_are_compared(size, other, same):
    row = {"image_id": "7", "caption_id": "7#0", "width": size[0], "height": size[1]}
    assert same_shape(size, other) == same
    join = collator(record(other))
    if same:
        assert join([row])
    else:
        with pytest.raises(ValueError, match=rf"image 7.*{size[0]} x {size[1]}.*{other[0]} x {other[1]}"):
            join([row])
    for unknown in ({"width": None, "height": None}, {}):
        assert join([{"image_id": "7", "caption_id": "7#0", **unknown}])
    assert collator(record((1, 1), 0))([row])  # an image without detections


def test_pictures_are_upright_and_compared(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (64, 48)).save(tmp_path / "7.jpg", exif=exif)
    row = {"image_id": "7", "caption_id": "7#0", "width": 48, "height": 64}
    assert collator(images=tmp_path)([row])["examples"].images[0].size == (48, 64)
    with pytest.raises(ValueError, match=r"image 7.*64 x 48 in the row.*48 x 64 in the picture"):
        collator(images=tmp_path)([{**row, "width": 64, "height": 48}])

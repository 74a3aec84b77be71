# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""RoIAlign against the reference's numbers, one sample at a time in plain Python, and torchvision where it is.

`tests/fixtures/fast_rcnn_roi_align.safetensors` holds every 64th channel of the public VL-BERT code's feature map of
two images (`body4`), its boxes (`rois`: image, corners in pixels) and what it cut out of that map (`roi_align`).
"""

import itertools
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from grounded_attention.modeling import roi_align as module
from grounded_attention.modeling.roi_align import roi_align, roi_align_torch

FIXTURE = Path(__file__).parents[1] / "fixtures" / "fast_rcnn_roi_align.safetensors"
SCALE = 0.25
# In the pixels of a 24 x 32 image, whose map has 6 x 8 cells: inside, touching, over every edge, outside, no area,
# corners exchanged, far away.
BOXES = torch.tensor(
    [
        [3.0, 2.0, 20.5, 17.0],
        [0.0, 0.0, 32.0, 24.0],
        [-9.0, -7.0, 50.0, 60.0],
        [-3.9, -3.0, 1.0, 2.0],
        [30.0, 22.0, 36.0, 28.0],
        [40.0, 30.0, 90.0, 70.0],
        [-60.0, -60.0, -20.0, -20.0],
        [7.0, 9.0, 7.0, 9.0],
        [20.0, 16.0, 4.0, 3.0],
        [-1e8, -1e8, 1e8, 1e8],
    ]
)
IMAGES = torch.tensor([1, 0, 1, 0, 0, 1, 0, 1, 0, 1])


def make_features(dtype=torch.float32):
    return torch.randn(2, 3, 6, 8, generator=torch.Generator().manual_seed(0), dtype=dtype)


def sample(plane, y, x):
    """A bilinear sample of a list of rows, as the paper's figure has it."""
    height = len(plane)
    width = len(plane[0])
    if y < -1 or y > height or x < -1 or x > width:
        return 0.0
    y = min(max(y, 0.0), height - 1.0)
    x = min(max(x, 0.0), width - 1.0)
    top = math.floor(y)
    left = math.floor(x)
    bottom = min(top + 1, height - 1)
    right = min(left + 1, width - 1)
    down = y - top
    across = x - left
    upper = plane[top][left] * (1 - across) + plane[top][right] * across
    lower = plane[bottom][left] * (1 - across) + plane[bottom][right] * across
    return upper * (1 - down) + lower * down


def align_scalar(features, boxes, images, output_size, scale, ratio):
    """The whole operation without a tensor operation."""
    result = torch.zeros(len(boxes), features.shape[1], output_size, output_size, dtype=features.dtype)
    for number, (box, image) in enumerate(zip(boxes.tolist(), images.tolist(), strict=True)):
        x1, y1, x2, y2 = (value * scale for value in box)
        bin_width = max(x2 - x1, 1.0) / output_size
        bin_height = max(y2 - y1, 1.0) / output_size
        steps = [(step + 0.5) / ratio for step in range(ratio)]
        for channel, plane in enumerate(features[image].tolist()):
            for row in range(output_size):
                for column in range(output_size):
                    total = 0.0
                    for down, across in itertools.product(steps, steps):
                        y = y1 + (row + down) * bin_height
                        x = x1 + (column + across) * bin_width
                        total += sample(plane, y, x)
                    result[number, channel, row, column] = total / ratio**2
    return result


@pytest.mark.parametrize("output_size, ratio", [(1, 1), (4, 1), (3, 2)])
def test_equals_one_sample_at_a_time(output_size, ratio):
    features = make_features(torch.float64)
    boxes = BOXES.double()
    expected = align_scalar(features, boxes, IMAGES, output_size, SCALE, ratio)
    for align in (roi_align, roi_align_torch):
        mine = align(features, boxes, IMAGES, output_size, SCALE, ratio)
        assert_close(mine, expected, rtol=1e-9, atol=1e-9)
    assert not expected[5].any()
    assert expected[3].any()


@pytest.mark.parametrize("align", [roi_align, roi_align_torch])
def test_equals_the_reference(align):
    reference = load_file(FIXTURE)
    rois = reference["rois"]
    mine = align(reference["body4"], rois[:, 1:], rois[:, 0].long(), 14, 1 / 16, 1)
    assert_close(mine, reference["roi_align"], rtol=1e-5, atol=1e-4)


@pytest.mark.skipif(module._torchvision_roi_align is None, reason="torchvision is not installed")
@pytest.mark.parametrize("output_size, ratio", [(1, 1), (14, 1), (7, 2)])
def test_both_paths_agree_with_gradients(output_size, ratio):
    values = []
    gradients = []
    for align in (module._roi_align_torchvision, roi_align_torch):
        features = make_features().requires_grad_()
        values.append(align(features, BOXES, IMAGES, output_size, SCALE, ratio))
        (values[-1] ** 2).sum().backward()
        gradients.append(features.grad)
    assert_close(*values, rtol=1e-5, atol=1e-5)
    assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_gradients_equal_differences():
    features = make_features(torch.float64).requires_grad_()
    boxes = BOXES.double()
    assert torch.autograd.gradcheck(
        lambda maps: roi_align_torch(maps, boxes, IMAGES, 2, SCALE, 2), features, fast_mode=True
    )


def test_no_gradient_flows_into_the_boxes():
    boxes = BOXES.clone().requires_grad_()
    roi_align(make_features().requires_grad_(), boxes, IMAGES, 2, SCALE, 1).sum().backward()
    assert boxes.grad is None


def test_chunks_change_nothing(monkeypatch):
    expected = roi_align_torch(make_features(), BOXES, IMAGES, 3, SCALE, 2)
    monkeypatch.setattr(module, "_CHUNK_NUMBERS", 1)
    assert_close(roi_align_torch(make_features(), BOXES, IMAGES, 3, SCALE, 2), expected)


def test_no_boxes_keep_the_graph():
    features = make_features().requires_grad_()
    cells = roi_align(features, torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), 3, SCALE, 1)
    assert cells.shape == (0, 3, 3, 3)
    cells.sum().backward()


def test_half_precision_and_autocast_lose_only_what_rounding_the_result_loses():
    features = make_features().bfloat16()
    exact = roi_align(features.float(), BOXES, IMAGES, 3, SCALE, 2)
    mine = roi_align(features, BOXES, IMAGES, 3, SCALE, 2)
    assert mine.dtype == torch.bfloat16
    assert_close(mine, exact.bfloat16(), rtol=0, atol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(roi_align(features.float(), BOXES, IMAGES, 3, SCALE, 2), exact, rtol=0, atol=0)


@pytest.mark.parametrize(
    "output_size, ratio, boxes, message",
    [
        (3, 0, BOXES, r"sampling_ratio \(0\)"),
        (0, 1, BOXES, r"output_size \(0\)"),
        (3, 1, BOXES[:, :3], r"boxes have the shape \(10, 3\)"),
        (3, 1, BOXES[:4], r"boxes have the shape \(4, 4\)"),
    ],
)
def test_wrong_arguments_are_named(output_size, ratio, boxes, message):
    with pytest.raises(ValueError, match=message):
        roi_align(make_features(), boxes, IMAGES, output_size, SCALE, ratio)

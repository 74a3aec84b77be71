# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Forms, choice of heads and crops, against what the authors' own code gave (and where that code is at fault)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from grounded_attention.heads.choosing import elbow
from grounded_attention.heads.maps import spatial_entropy
from grounded_attention.lens.forms import (
    crop_box,
    find_sinks,
    localization_heads,
    relative,
    rollout_rows,
    without_sinks,
)

PARITY = Path(__file__).parents[3] / "shared/parity/attention_grounding.pt"
recorded = pytest.mark.skipif(not PARITY.exists(), reason="no reference tensors here")


@pytest.fixture(scope="module")
def reference():
    return torch.load(PARITY, weights_only=True)


def pairs(heads):
    return [tuple(pair) for pair in heads.tolist()]


@recorded
def test_heads_without_labels_are_those_of_vl_saliency(reference):
    attention = reference["localization_heads"]["attention"].view(20, 5, 4, 8, 8)
    for sample in reference["vl_saliency"]["localization"]:
        maps = attention[sample["sample"]]
        entropy = spatial_entropy(maps.flatten(0, 1), 2.0, 1e-3).double()
        assert_close(entropy, sample["spatial_entropy"], atol=1e-6, rtol=0)
        assert elbow(maps.sum((2, 3)).numpy()) == pytest.approx(sample["elbow_value"], abs=1e-6)
        assert localization_heads(maps) == pairs(sample["default"])
        assert localization_heads(maps, most=3) == pairs(sample["max_3"])
        assert localization_heads(maps, most=0) == pairs(sample["all"])
        assert localization_heads(maps, most=0, chord=False) == pairs(sample["no_chord"])
        assert localization_heads(maps, most=0, least=6) == pairs(sample["min_keep_6"])


def mean_attention(case, name):
    """Of the answers of a prompt to the tokens of the image."""
    rows, columns = case["grid"]
    first = case[f"first_image_position_{name}"]
    return case[f"attention_{name}"][:, first : first + rows * columns].mean(0)


@recorded
def test_relative_attention_and_crops_are_those_of_their_authors(reference):
    for case in reference["mllms_know"]["relative"]:
        found = relative(mean_attention(case, "question"), mean_attention(case, "neutral"))
        assert_close(found.view(*case["grid"]), case["relative"], atol=1e-6, rtol=0)
    for case in reference["mllms_know"]["crop"]:
        assert crop_box(case["map"].numpy(), tuple(case["image_size"]), case["base"]) == tuple(case["box"].tolist())


def test_a_map_without_a_component_ranks_last():
    """The published code gives it an entropy of 0, the best."""
    maps = torch.full((1, 3, 6, 6), 0.01)
    maps[0, 1, 2, 2] = 0.5
    maps[0, 2, 1, 1] = 0.4
    maps[0, 2, 4, 4] = 0.4
    entropy = spatial_entropy(maps[0], 2.0, 1e-3)
    assert entropy[1] < entropy[2] < entropy[0]
    assert localization_heads(maps, skip_layers=0, most=0, chord=False) == [(0, 1), (0, 2), (0, 0)]


def test_rounding_does_not_order_heads():
    """One bright place each, of different brightness: entropies are 0 up to rounding, so the first heads win."""
    maps = torch.full((1, 40, 12, 12), 0.01)
    maps[0, :, 1:4, 1:5] = torch.rand(40, 3, 4, generator=torch.Generator().manual_seed(0)) + 0.5
    assert localization_heads(maps, skip_layers=0, most=0, chord=False) == [(0, head) for head in range(40)]


def test_a_cell_wider_than_the_window_is_a_window():
    """The published code divides by 0 cells and takes the corner of the image."""
    values = np.zeros((3, 3))
    values[1, 2] = 1.0
    x1, y1, x2, y2 = crop_box(values, (9000, 6000), 336)
    assert 6000 <= x1 < x2 <= 9000
    assert 2000 <= y1 < y2 <= 4000


@pytest.mark.parametrize("size", [(200, 150), (640, 90), (90, 640), (1, 1)])
def test_crops_are_inside_the_image(size):
    for seed in range(5):
        x1, y1, x2, y2 = crop_box(np.random.default_rng(seed).random((7, 9)), size, 48)
        assert 0 <= x1 < x2 <= size[0]
        assert 0 <= y1 < y2 <= size[1]


def test_sinks_draw_from_every_word():
    attention = torch.full((6, 20), 0.01)
    attention[:, 3] = 0.5
    attention[torch.arange(6), torch.arange(6) + 10] = 0.9
    sinks = find_sinks(attention)
    assert sinks.nonzero().flatten().tolist() == [3]
    left = without_sinks(attention, sinks)
    assert left[:, 3].sum() == 0
    assert left.argmax(1).tolist() == list(range(10, 16))
    assert not find_sinks(attention[:3]).any(), "three words say too little"


def test_rollout_is_the_product_of_the_mixed_maps():
    maps = torch.rand(3, 5, 5, generator=torch.Generator().manual_seed(0)).softmax(-1)
    product = torch.eye(5)
    for attention in maps:
        product = (0.5 * torch.eye(5) + 0.5 * attention) @ product
    assert_close(rollout_rows(maps, torch.tensor([4, 1])), product[[4, 1]])

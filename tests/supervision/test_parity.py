# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The released variant against losses and gradients recorded from the public VGP code on given attention maps."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from grounded_attention.supervision import attention_rollout
from tests.helpers.method_variants import make_method

RECORDED = load_file(Path(__file__).parents[1] / "fixtures" / "supervision_losses.safetensors")
DIRECTIONS = ("text_to_region", "region_to_text")


def batch_of(case):
    """Tags (a token's region, 0 for none) as phrases; the public code's column 0 is the whole image."""
    tags = RECORDED[f"{case}.text_tags"]
    regions = RECORDED[f"{case}.box_mask"]
    numbers = torch.arange(1, regions.shape[1])
    phrase_mask = tags[:, None] == numbers[:, None]
    phrase_regions = torch.nn.functional.one_hot(numbers, regions.shape[1]).bool().expand(len(tags), -1, -1)
    text = RECORDED[f"{case}.text_mask"]
    places = {  # the public code moves a row's regions next to its text
        "text_positions": torch.arange(text.shape[1]).expand_as(text),
        "region_positions": (text.sum(1, keepdim=True) + torch.arange(regions.shape[1])) * regions,
    }
    masks = {"attention_mask": text, "region_attention_mask": regions}
    return {"phrase_mask": phrase_mask, "phrase_regions": phrase_regions, **masks, **places}


def losses_of(method, maps, batch):
    if method.name == "semi_direct":
        maps = [rollout[:, None] for rollout in attention_rollout([layer.mean(1) for layer in maps])]
    return method.maps_losses(maps, batch)


@pytest.mark.parametrize("normalization", ["linear", "softmax"])
@pytest.mark.parametrize("name", ["direct", "semi_direct"])
def test_released_losses_and_gradients(name, normalization):
    maps = [layer.clone().requires_grad_() for layer in RECORDED["aligned.maps"]]
    method = make_method(name, "released", normalization)
    losses = losses_of(method, maps, batch_of("aligned"))
    means = torch.stack([losses[direction][0] / losses[direction][1] for direction in DIRECTIONS])
    expected = f"aligned.{name}_{normalization}"
    torch.testing.assert_close(means, RECORDED[f"{expected}.losses"], atol=1e-5, rtol=0)
    gradients = torch.stack(torch.autograd.grad(means.sum(), maps))
    torch.testing.assert_close(gradients, RECORDED[f"{expected}.gradients"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["direct", "semi_direct"])
def test_nothing_grounded_gives_zero(name):
    maps = [layer.clone().requires_grad_() for layer in RECORDED["none.maps"]]
    losses = losses_of(make_method(name, "released"), maps, batch_of("none"))
    for index, direction in enumerate(DIRECTIONS):
        total, count = losses[direction]
        assert total.item() == RECORDED[f"none.{name}_linear.losses"][index].item() == 0
        assert count.item() == 0
    total = sum(total for total, _ in losses.values())
    assert all(gradient.eq(0).all() for gradient in torch.autograd.grad(total, maps))


@pytest.mark.parametrize("case", ["aligned", "none"])
def test_rollout(case):
    rollouts = attention_rollout([layer.mean(1) for layer in RECORDED[f"{case}.maps"]])
    torch.testing.assert_close(torch.stack(rollouts, 1), RECORDED[f"{case}.rollout"], atol=1e-6, rtol=0)

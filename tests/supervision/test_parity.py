# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The released variant against losses and gradients recorded from the public VGP code on given attention maps."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from grounded_attention.supervision import attention_rollout
from tests.helpers.method_variants import make_method

RECORDED = load_file(Path(__file__).parents[1] / "fixtures" / "supervision_losses.safetensors")


def batch_of(case):
    """Tags (a token's region, 0 for none) as phrases; the public code's column 0 is the whole image."""
    tags = RECORDED[f"{case}.text_tags"]
    text = RECORDED[f"{case}.text_mask"]
    regions = RECORDED[f"{case}.box_mask"]
    numbers = torch.arange(regions.shape[1])
    gold = torch.eye(len(numbers))[1:].expand(len(tags), -1, -1)
    return {
        "phrase_mask": tags[:, None] == numbers[1:, None],
        "phrase_regions": gold.bool(),
        "attention_mask": text,
        "region_attention_mask": regions,
        # The public code moves a row's regions next to its text.
        "text_positions": torch.arange(text.shape[1]).expand_as(text),
        "region_positions": (text.sum(1, keepdim=True) + numbers) * regions,
    }


def losses_of(name, case, *options):
    """The losses of a method on recorded maps, and the maps."""
    layers = [layer.clone().requires_grad_() for layer in RECORDED[f"{case}.maps"]]
    maps = layers
    if name == "semi_direct":
        maps = [rollout[:, None] for rollout in attention_rollout([layer.mean(1) for layer in layers])]
    losses = make_method(name, "released", *options).maps_losses(maps, batch_of(case))
    return [losses["text_to_region"], losses["region_to_text"]], layers


@pytest.mark.parametrize("normalization", ["linear", "softmax"])
@pytest.mark.parametrize("name", ["direct", "semi_direct"])
def test_released_losses_and_gradients(name, normalization):
    losses, maps = losses_of(name, "aligned", normalization)
    means = torch.stack([total / count for total, count in losses])
    expected = f"aligned.{name}_{normalization}"
    assert_close(means, RECORDED[f"{expected}.losses"], atol=1e-5, rtol=0)
    gradients = torch.autograd.grad(means.sum(), maps)
    assert_close(torch.stack(gradients), RECORDED[f"{expected}.gradients"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["direct", "semi_direct"])
def test_nothing_grounded_gives_zero(name):
    losses, maps = losses_of(name, "none")
    assert not RECORDED[f"none.{name}_linear.losses"].any()
    for total, count in losses:
        assert total == 0
        assert count == 0
        for gradient in torch.autograd.grad(total, maps, retain_graph=True):
            assert not gradient.any()


@pytest.mark.parametrize("case", ["aligned", "none"])
def test_rollout(case):
    rollouts = attention_rollout([layer.mean(1) for layer in RECORDED[f"{case}.maps"]])
    assert_close(torch.stack(rollouts, 1), RECORDED[f"{case}.rollout"], atol=1e-6, rtol=0)

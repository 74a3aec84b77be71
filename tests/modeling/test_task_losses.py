# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Losses as (sum, count): by loops, additive over the parts of a batch, 0 with a graph where nothing is labelled."""

import pytest
import torch

from grounded_attention.modeling.task_losses import (
    answer_sum,
    choice_sum,
    cross_entropy_sum,
    grounding_divergence_sum,
    mean_of,
    region_sum,
    soft_cross_entropy_sum,
)
from tests.helpers.closeness import assert_close

B = 5
C = 4
LABELS = torch.tensor([2, -100, 0, 3, -100])
REGIONS = torch.tensor([[1.0, 0, -100, 0.5], [1.0, 0, -100, 0.5], [0.0, -1, -1, -1], [0.0, -1, -1, -1], [-100.0] * 4])
ANSWERS = torch.tensor([[0.3, 0, 1, 0], [0.0, 0, 0, 0], [1.0, 1, 0, 0], [0, 0, 0, 0.6], [0.3, 0.3, 0, 0]])
PROBABILITIES = torch.tensor([[0.5, 0.5, 0, 0], [0.0, 0, 0, 0], [0.1, 0.2, 0.3, 0.35], [0.5, 0, 0, 0], [1.0, 0, 0, 0]])
RIGHT = torch.eye(2 * B, C).bool().view(B, 2, C)  # most phrases of the last three rows have no region
RIGHT[0, :, 2] = True
RIGHT[4, 1] = True


def logits(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), requires_grad=True)


def binary(scores, targets):
    shares = scores.sigmoid()
    return -targets * shares.log() - (1 - targets) * (1 - shares).log()


def divergence(logs, targets):
    """Of the targets from the prediction, over the targets that are not 0."""
    return sum(target * (target.log() - log) for log, target in zip(logs, targets, strict=True) if target)


def row_losses(name, scores, target):
    """The losses that a row adds to the sum, each counted once."""
    logs = scores.log_softmax(-1)
    if name in ("cross_entropy", "softmax"):
        return [-logs[target]] if target >= 0 else []
    if name == "sigmoid":
        return [binary(scores, torch.eye(C)[target]).mean()] if target >= 0 else []
    if name == "region":
        return [*binary(scores, target)[target >= 0]]
    if name == "binary":
        return [binary(scores, target).sum()]
    if name == "soft":
        return [-(target * logs).sum()] if abs(target.sum() - 1) < 0.1 else []
    if name == "shares":
        return [-(target * logs).sum() / target.sum()] if target.any() else []
    if name == "divergence":
        return [divergence(logs, target)]
    phrases = [divergence(log, right / right.sum()) for log, right in zip(logs, target, strict=True) if right.any()]
    return [sum(phrases)]


# Name -> the loss, and the targets.
LOSSES = {
    "cross_entropy": (cross_entropy_sum, LABELS),
    "softmax": (lambda *given: choice_sum(*given, "softmax"), LABELS),
    "sigmoid": (lambda *given: choice_sum(*given, "sigmoid"), LABELS),
    "region": (region_sum, REGIONS),
    "soft": (soft_cross_entropy_sum, PROBABILITIES),
    "binary": (lambda *given: answer_sum(*given, "binary_cross_entropy"), ANSWERS),
    "shares": (lambda *given: answer_sum(*given, "cross_entropy"), ANSWERS),
    "divergence": (lambda *given: answer_sum(*given, "kl_divergence"), ANSWERS),
    "grounding": (grounding_divergence_sum, RIGHT),
}


def scores_for(name):
    if name == "grounding":
        return logits(B, 2, C)
    return logits(B, C)


@pytest.mark.parametrize("name", LOSSES)
def test_sum_and_count_equal_loops(name):
    loss, targets = LOSSES[name]
    scores = scores_for(name)
    total, count = loss(scores, targets)
    losses = []
    for row, target in zip(scores, targets, strict=True):
        losses += row_losses(name, row, target)
    assert count == len(losses) > 0
    assert_close(total, sum(losses))
    assert_close(mean_of((total, count)), sum(losses) / len(losses))


@pytest.mark.parametrize("name", LOSSES)
def test_parts_of_a_batch_add_up_to_it(name):
    loss, targets = LOSSES[name]
    scores = scores_for(name)
    total, count = loss(scores, targets)
    first, first_count = loss(scores[:2], targets[:2])
    second, second_count = loss(scores[2:], targets[2:])
    assert_close(total, first + second)
    assert count == first_count + second_count


@pytest.mark.parametrize("name", ["cross_entropy", "softmax", "sigmoid", "region", "soft", "shares"])
def test_nothing_labelled_is_a_zero_with_a_graph(name):
    loss, targets = LOSSES[name]
    scores = scores_for(name)
    none = torch.zeros_like(targets) if name in ("soft", "shares") else torch.full_like(targets, -100)
    total, count = loss(scores, none)
    mean_of((total, count)).backward()
    assert total == 0
    assert count == 0
    assert not scores.grad.any()


def test_means_of_several_losses_are_added():
    one = (torch.tensor(6.0), torch.tensor(3))
    two = (torch.tensor(0.0), torch.tensor(0))
    assert mean_of(one, two) == 2.0
    assert mean_of() is None

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Losses as (sum, count): by loops, additive over the parts of a batch, 0 with a graph where nothing is labelled."""

import math

import pytest
import torch
from torch.testing import assert_close

from grounded_attention.modeling.task_losses import (
    answer_sum,
    choice_sum,
    cross_entropy_sum,
    grounding_divergence_sum,
    mean_of,
    region_sum,
    soft_cross_entropy_sum,
)

B = 5
C = 4
LABELS = torch.tensor([2, -100, 0, 3, -100])
REGIONS = torch.tensor([[1.0, 0, -100, 0.5]] * 2 + [[0.0, -1, -1, -1]] * 2 + [[-100.0] * 4])
ANSWERS = torch.tensor([[0.3, 0, 1, 0], [0.0, 0, 0, 0], [1.0, 1, 0, 0], [0, 0, 0, 0.6], [0.3, 0.3, 0, 0]])
PROBABILITIES = torch.tensor([[0.5, 0.5, 0, 0], [0.0, 0, 0, 0], [0.1, 0.2, 0.3, 0.35], [0.5, 0, 0, 0], [1.0, 0, 0, 0]])
RIGHT = torch.tensor([[[1, 0, 1, 0], [0, 0, 0, 0]]] * 4 + [[[0, 1, 0, 0], [1, 1, 1, 1]]]).bool()


def logits(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), requires_grad=True)


def log_softmax(row):
    total = math.log(sum(map(math.exp, row)))
    return [value - total for value in row]


def binary(score, target):
    share = 1 / (1 + math.exp(-score))
    return -target * math.log(share) - (1 - target) * math.log(1 - share)


def by_loops(name, scores, targets):
    losses = []
    for row, target in zip(scores, targets, strict=True):
        if name in ("cross_entropy", "softmax") and target >= 0:
            losses.append(-log_softmax(row)[target])
        elif name == "sigmoid" and target >= 0:
            losses.append(sum(binary(score, float(k == target)) for k, score in enumerate(row)) / len(row))
        elif name == "region":
            losses += [binary(score, wanted) for score, wanted in zip(row, target, strict=True) if wanted >= 0]
        elif name == "soft" and abs(sum(target) - 1) < 0.1:
            losses.append(-sum(p * log for p, log in zip(target, log_softmax(row), strict=True)))
        elif name == "binary":
            losses.append(sum(map(binary, row, target)))
        elif name == "shares" and sum(target):
            losses.append(-sum(p / sum(target) * log for p, log in zip(target, log_softmax(row), strict=True)))
        elif name == "divergence":
            logs = log_softmax(row)
            losses.append(sum(p * (math.log(p) - log) for p, log in zip(target, logs, strict=True) if p))
        elif name == "grounding":
            parts = [0.0]
            for phrase, right in zip(row, target, strict=True):
                share = 1 / max(sum(right), 1)
                logs = log_softmax(phrase)
                parts += [share * (math.log(share) - log) for log, chosen in zip(logs, right, strict=True) if chosen]
            losses.append(sum(parts))
    return sum(losses), len(losses)


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
    expected, counted = by_loops(name, scores.tolist(), targets.tolist())
    assert total.item() == pytest.approx(expected, rel=1e-5)
    assert count.item() == counted > 0
    assert mean_of((total, count)).item() == pytest.approx(expected / counted, rel=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_parts_of_a_batch_add_up_to_it(name):
    loss, targets = LOSSES[name]
    scores = scores_for(name)
    parts = [loss(scores[part], targets[part]) for part in (slice(0, 2), slice(2, B))]
    for whole, halves in zip(loss(scores, targets), zip(*parts, strict=True), strict=True):
        assert_close(whole, sum(halves))


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

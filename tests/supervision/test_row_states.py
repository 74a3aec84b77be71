# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention from the states of rows, of one layer and of several, against loops over single rows."""

import itertools
from functools import partial

import pytest
import torch

from grounded_attention import get_method
from grounded_attention.supervision import row_states
from grounded_attention.supervision.layer_losses import sum_layers
from grounded_attention.supervision.method import uniform_rows
from grounded_attention.supervision.row_states import RowStates, layers_at_once, stack_states
from grounded_attention.supervision.score_masks import LOWEST_SCORE, ScoreMask
from tests.helpers.supervision_models import bert, embeddings, supervised

BATCH = 2
HEADS = 4
ROWS = 3
WIDTH = 5


def make_mask(columns, heads=HEADS):
    """Hides a third of the columns from each head and row, all from row 0 of example 1, and none from row 1."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.rand(BATCH, heads, ROWS, columns, generator=generator) < 0.3
    hidden[1, :, 0], hidden[:, :, 1] = True, False
    return ScoreMask(hidden, torch.randn(hidden.shape, generator=generator))


def make_states(mask, seed=0, groups=HEADS):
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=generator)
    keys = draw(BATCH, groups, mask.hidden.shape[-1], WIDTH)
    return RowStates(draw(BATCH, HEADS, ROWS, WIDTH), keys, 0.4, mask)


def row_by_row(states):
    """log_alpha (B, H, Q, K), each row over its visible columns alone."""
    shared = HEADS // states.keys.shape[1]
    found = torch.full((BATCH, HEADS, ROWS, states.keys.shape[2]), LOWEST_SCORE)
    for b, h, q in itertools.product(range(BATCH), range(HEADS), range(ROWS)):
        head = h if states.mask.hidden.shape[1] > 1 else 0
        seen = (~states.mask.hidden[b, head, q]).nonzero()[:, 0]
        scores = states.keys[b, h // shared][seen] @ states.rows[b, h, q] * states.scaling
        found[b, h, q, seen] = (scores + states.mask.bias[b, head, q, seen]).log_softmax(0)
    return found


@pytest.mark.parametrize("columns", [7, 20], ids=["few columns", "many columns"])
@pytest.mark.parametrize("groups", [HEADS, 2])
@pytest.mark.parametrize("heads", [HEADS, 1], ids=["a mask for each head", "one mask"])
def test_attention_is_that_of_single_rows(columns, groups, heads):
    states = make_states(make_mask(columns, heads), groups=groups)
    expected = row_by_row(states)
    torch.testing.assert_close(states.pair()[0], expected)
    assert states.visible_columns().equal((expected > LOWEST_SCORE).all(1))
    chosen = [3, 1]
    torch.testing.assert_close(states.select_heads(chosen).pair()[0], expected[:, chosen])
    assert states.select_heads(chosen).visible_columns().equal((expected[:, chosen] > LOWEST_SCORE).all(1))


@pytest.mark.parametrize("columns", [7, 20])
def test_stacked_layers_have_their_own_attention(columns):
    mask = make_mask(columns)
    layers = [make_states(mask, seed) for seed in range(3)]
    assert layers[0].fits(layers[1])
    assert not layers[0].fits(make_states(make_mask(columns)))
    together = stack_states(layers).log_alpha()
    for found, layer in zip(together, layers, strict=True):
        torch.testing.assert_close(found.masked_fill(mask.hidden, LOWEST_SCORE), row_by_row(layer))


@pytest.mark.parametrize("report", [lambda layer: layer, RowStates.pair], ids=["states", "pairs"])
def test_a_gold_column_that_a_head_does_not_see_is_left_out(report):
    layers = [make_states(make_mask(7), seed) for seed in range(2)]
    gold = torch.rand(BATCH, ROWS, 7, generator=torch.Generator().manual_seed(3)) < 0.7
    expected = 0.0
    number = 0
    for b, q in itertools.product(range(BATCH), range(ROWS)):
        seen = gold[b, q] & ~layers[0].mask.hidden[b, :, q].any(0)
        if seen.any():
            number += 1
            expected -= sum(row_by_row(layer)[b, :, q][:, seen].mean() for layer in layers) / len(layers)
    total, count = sum_layers([report(layer) for layer in layers], gold, uniform_rows)
    assert 0 < number == count < BATCH * ROWS
    torch.testing.assert_close(total, expected)


def test_small_layers_report_states_and_large_ones_attention(monkeypatch):
    model = supervised(bert())
    method = get_method("direct", directions=["text_to_region"])
    batch = {
        "phrase_mask": torch.ones(2, 1, 3),
        "phrase_regions": torch.ones(2, 1, 4),
        "text_positions": torch.arange(3).repeat(2, 1),
        "region_positions": torch.arange(3, 7).repeat(2, 1),
    }
    run = partial(model, inputs_embeds=embeddings())
    small = run(**method.forward_kwargs(batch)).attentions
    numbers = small[0].reports[0].size()
    monkeypatch.setattr(row_states, "JOINED_NUMBERS", 2 * numbers - 1)  # no two layers fit
    large = run(**method.forward_kwargs(batch)).attentions
    for states, attention in zip(small, large, strict=True):
        assert isinstance(states.reports[0], RowStates)
        assert attention.pairs[0] is attention.reports[0]
        torch.testing.assert_close(states.pairs[0], attention.pairs[0])


def test_a_gpu_computes_more_layers_at_once():
    """A launch costs more there than a copy."""
    numbers = 3 * row_states.JOINED_NUMBERS
    assert layers_at_once(numbers, torch.device("cpu")) == 0 < 1 < layers_at_once(numbers, torch.device("cuda"))

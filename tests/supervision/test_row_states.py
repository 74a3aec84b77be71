# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention from the states of rows, of one layer and of several, against loops over single rows."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

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
    hidden[1, :, 0] = True
    hidden[:, :, 1] = False
    return ScoreMask(hidden, torch.randn(hidden.shape, generator=generator))


def make_states(mask, seed=0, groups=HEADS):
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(BATCH, groups, mask.hidden.shape[-1], WIDTH, generator=generator)
    rows = torch.randn(BATCH, HEADS, ROWS, WIDTH, generator=generator)
    return RowStates(rows, keys, 0.4, mask)


def row_by_row(states):
    """log_alpha (B, H, Q, K), each row over its visible columns alone."""
    found = torch.full((BATCH, HEADS, ROWS, states.keys.shape[2]), LOWEST_SCORE)
    keys = states.keys.repeat_interleave(HEADS // states.keys.shape[1], 1)
    hidden = states.mask.hidden.expand_as(found)
    bias = states.mask.bias.expand_as(found)
    for b, h, q in np.ndindex(BATCH, HEADS, ROWS):
        visible = ~hidden[b, h, q]
        scores = keys[b, h, visible] @ states.rows[b, h, q] * states.scaling + bias[b, h, q, visible]
        found[b, h, q, visible] = scores.log_softmax(0)
    return found


@pytest.mark.parametrize("chosen", [slice(None), [3, 1]], ids=["all heads", "some"])
@pytest.mark.parametrize("columns", [7, 20], ids=["few columns", "many columns"])
@pytest.mark.parametrize("groups", [HEADS, 2])
@pytest.mark.parametrize("heads", [HEADS, 1], ids=["a mask for each head", "one mask"])
def test_attention_is_that_of_single_rows(columns, groups, heads, chosen):
    states = make_states(make_mask(columns, heads), groups=groups)
    expected = row_by_row(states)[:, chosen]
    if isinstance(chosen, list):
        states = states.select_heads(chosen)
    assert_close(states.pair()[0], expected)
    visible = expected > LOWEST_SCORE
    assert torch.equal(states.visible_columns(), visible.all(1))


@pytest.mark.parametrize("columns", [7, 20])
def test_stacked_layers_have_their_own_attention(columns):
    mask = make_mask(columns)
    layers = [make_states(mask, seed) for seed in range(3)]
    assert layers[0].fits(layers[1])
    assert not layers[0].fits(make_states(make_mask(columns)))
    together = stack_states(layers).log_alpha()
    for found, layer in zip(together, layers, strict=True):
        assert_close(found.masked_fill(mask.hidden, LOWEST_SCORE), row_by_row(layer))


@pytest.mark.parametrize("report", [lambda layer: layer, RowStates.pair], ids=["states", "pairs"])
def test_a_gold_column_that_a_head_does_not_see_is_left_out(report):
    layers = [make_states(make_mask(7), seed) for seed in range(2)]
    logs = torch.cat([row_by_row(layer) for layer in layers], 1)
    visible = (logs > LOWEST_SCORE).all(1)
    gold = torch.rand(BATCH, ROWS, 7, generator=torch.Generator().manual_seed(3)) < 0.7
    losses = []
    for b, q in np.ndindex(BATCH, ROWS):
        kept = gold[b, q] & visible[b, q]
        if kept.any():
            losses.append(-logs[b, :, q, kept].mean())
    total, count = sum_layers([report(layer) for layer in layers], gold, uniform_rows)
    assert 0 < count == len(losses) < BATCH * ROWS
    assert_close(total, sum(losses))


def test_small_layers_report_states_and_large_ones_attention(monkeypatch):
    model = supervised(bert())
    batch = {
        "phrase_mask": torch.ones(2, 1, 3),
        "phrase_regions": torch.ones(2, 1, 4),
        "text_positions": torch.arange(3).repeat(2, 1),
        "region_positions": torch.arange(3, 7).repeat(2, 1),
    }
    method = get_method("direct", directions=["text_to_region"])
    inputs = embeddings()
    small = model(inputs_embeds=inputs, **method.forward_kwargs(batch)).attentions
    numbers = next(iter(small[0].reports)).size()
    monkeypatch.setattr(row_states, "JOINED_NUMBERS", 2 * numbers - 1)  # no two layers fit
    large = model(inputs_embeds=inputs, **method.forward_kwargs(batch)).attentions
    for states, attention in zip(small, large, strict=True):
        assert isinstance(next(iter(states.reports)), RowStates)
        assert attention.pairs[0] is attention.reports[0]
        assert_close(states.pairs[0], attention.pairs[0])


def test_a_gpu_computes_more_layers_at_once():
    """A launch costs more there than a copy."""
    numbers = 3 * row_states.JOINED_NUMBERS
    assert layers_at_once(numbers, torch.device("cpu")) == 0 < 1 < layers_at_once(numbers, torch.device("cuda"))

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Plans of queried rows: made once for all layers of a pass, and never used for other tensors or another request."""

import pytest
import torch
from torch.testing import assert_close

from grounded_attention import get_method
from grounded_attention.supervision import row_plans
from grounded_attention.supervision.row_plans import RowPlans
from tests.helpers.row_pairs import attend_rows
from tests.helpers.supervision_models import LAYERS, LENGTH, PADDING, bert, embeddings, gradients


@pytest.fixture
def made(monkeypatch):
    """The arguments of each plan that is made, not found."""
    calls = []
    make = row_plans.make_plan

    def note(*given):
        calls.append(given)
        return make(*given)

    monkeypatch.setattr(row_plans, "make_plan", note)
    return calls


def query():
    return torch.tensor([[1, 4, -1], [2, -1, -1]]), torch.tensor([[9, 10, 11, -1], [9, 10, -1, -1]])


def full_mask():
    return torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool)


def attend(plans, pair, mask=None, share=False, causal=False):
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(2, 2, LENGTH, 2, 8, generator=generator).transpose(2, 3)
    ((log_alpha, _),) = attend_rows(*states, [pair], 0.3, mask, share, causal, plans)
    return log_alpha


def batch():
    """Phrases of two words with a region each; five words, then six regions."""
    return {
        "phrase_mask": torch.eye(2, 5).repeat(2, 1, 1).bool(),
        "phrase_regions": torch.eye(2, 6).repeat(2, 1, 1).bool(),
        "text_positions": torch.arange(5).repeat(2, 1),
        "region_positions": torch.arange(5, 11).repeat(2, 1),
    }


@pytest.mark.parametrize("back_end", ["sdpa", "eager"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_all_layers_share_the_plan_of_a_pass(made, back_end, checkpointing):
    model = bert(back_end).train()
    inputs = embeddings()
    method = get_method("direct")
    method.prepare(model)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    found = []
    for shared in (True, False):
        arguments = method.forward_kwargs(batch())
        if not shared:
            del arguments["attention_plans"]
        outputs = model(inputs_embeds=inputs, attention_mask=PADDING, **arguments)
        total = sum(value for value, _ in method.losses(outputs, batch()).values())
        found.append([total, *gradients(total, model, inputs)])
    # Without plans each layer makes its own, in the second forward pass of checkpointing again.
    assert len(made) == 1 + LAYERS * (1 + checkpointing)
    assert_close(*found, rtol=0, atol=0)


def test_a_plan_is_for_these_tensors_and_this_request(made):
    plans = RowPlans()
    pair = query()
    mask = full_mask().tril(12)
    requests = [{}, {"mask": mask}, {"mask": mask.clone()}, {"share": True}, {"causal": True}]
    first = [attend(plans, pair, **request) for request in requests]
    again = [attend(plans, pair, **request) for request in requests]
    assert len(made) == len(requests)
    assert_close(first, again, rtol=0, atol=0)


@pytest.mark.parametrize("which", ["rows", "columns", "mask"])
def test_a_tensor_that_was_written_to_has_a_new_plan(made, which):
    plans = RowPlans()
    pair = query()
    mask = full_mask()
    before = attend(plans, pair, mask)
    if which == "mask":
        mask[:, :, :, 9] = False
    else:
        pair[which == "columns"][0, 0] = 6
    after = attend(plans, pair, mask)
    assert len(made) == 2
    assert not torch.equal(before, after)
    assert torch.equal(after, attend(None, pair, mask))


def test_inference_and_training_may_take_turns():
    """A tensor that was made in inference mode cannot be part of a backward pass."""
    model = bert()
    inputs = embeddings()
    method = get_method("direct")
    method.prepare(model)
    arguments = method.forward_kwargs(batch())
    with torch.inference_mode():
        model(inputs_embeds=inputs, **arguments)
    outputs = model(inputs_embeds=inputs, **arguments)
    total = sum(value for value, _ in method.losses(outputs, batch()).values())
    assert all(gradient.isfinite().all() for gradient in gradients(total, model, inputs))


def test_a_mask_with_a_gradient_gets_it_in_every_pass(made):
    plans = RowPlans()
    pair = query()
    mask = torch.zeros(2, 1, LENGTH, LENGTH, requires_grad=True)
    with torch.no_grad():
        attend(plans, pair, mask)
    for _ in range(2):
        attend(plans, pair, mask)[0, :, 0, 0].sum().backward()
    assert len(made) == 3
    assert mask.grad[0, 0, 1, 9] > 0


def test_arguments_that_are_used_again_keep_few_plans(made):
    plans = RowPlans()
    pair = query()
    for _ in range(100):
        attend(plans, pair, full_mask())
    assert len(plans._known) <= row_plans._MOST_PLANS < len(made)


def test_layers_with_other_numbers_of_key_heads_are_read_apart():
    """Full layers may have fewer key heads than those with windows (Gemma 4), and the same plan."""
    plans = RowPlans()
    rows = torch.arange(LENGTH).expand(2, -1)
    plan = plans.find([(rows, rows)], LENGTH, LENGTH, None, True, whole_rows=False)
    generator = torch.Generator().manual_seed(0)
    layers = []
    for groups in (2, 2, 1, 2):
        states = torch.randn(2, LENGTH, 4 + groups, 8, generator=generator).transpose(1, 2).requires_grad_()
        layers.append(row_plans.UnreadRows(states[:, :4], states[:, 4:], plan, 0.3, None))
    found = [(*states.rows.shape[:1], states.keys.shape[2]) for [states] in row_plans.read_together(layers)]
    assert found == [(2, 2), (1, 1), (1, 2)]


@pytest.mark.parametrize("width", [1, 2, 7, 15, 16, 17])
def test_few_columns_are_normalized_as_many(width):
    """Fewer columns than a vector register has numbers are computed in another order of memory."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(2, 2, 3, LENGTH, 8, generator=generator).requires_grad_()
    rows = torch.arange(9).expand(2, -1)
    columns = torch.arange(width).expand(2, -1)
    ((found, _),) = attend_rows(*states, [(rows, columns)], 0.3, None, share=False)
    query, key = states.double()
    expected = (0.3 * query[:, :, :9] @ key[:, :, :width].transpose(2, 3)).log_softmax(-1)
    assert_close(found, expected.float())
    (ours,) = torch.autograd.grad(found[..., 0].sum(), states)
    (theirs,) = torch.autograd.grad(expected[..., 0].sum(), states)
    assert_close(ours, theirs)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("examples", [0, 2])
def test_no_rows_and_no_examples_give_empty_reports(share, examples):
    states = torch.randn(2, examples, LENGTH, 4, 8).transpose(2, 3)
    none = (torch.zeros(examples, 0, dtype=torch.long), torch.zeros(examples, 5, dtype=torch.long))
    for layout in (states, states.contiguous()):
        ((log_alpha, log_share),) = attend_rows(*layout, [none], 0.3, None, share)
        assert log_alpha.shape == (examples, 4, 0, 5)
        assert (log_share is None) != share

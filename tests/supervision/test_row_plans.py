# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Plans of queried rows: made once for all layers of a pass, and never used for other tensors or another request."""

import pytest
import torch

from grounded_attention import get_method
from grounded_attention.supervision import row_plans
from grounded_attention.supervision.row_plans import RowPlans
from tests.helpers.row_pairs import attend_rows
from tests.helpers.supervision_models import LAYERS, LENGTH, PADDING, bert, embeddings, gradients


@pytest.fixture
def made(monkeypatch):
    """The arguments of each plan that is made, not found."""
    calls: list = []
    make = row_plans.make_plan
    monkeypatch.setattr(row_plans, "make_plan", lambda *given: calls.append(given) or make(*given))
    return calls


def query():
    return torch.tensor([[1, 4, -1], [2, -1, -1]]), torch.tensor([[9, 10, 11, -1], [9, 10, -1, -1]])


def full_mask():
    return torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool)


def attend(plans, pair, mask=None, share=False, causal=False):
    states = torch.randn(2, 2, LENGTH, 2, 8, generator=torch.Generator().manual_seed(0)).transpose(2, 3)
    return attend_rows(states[0], states[1], [pair], 0.3, mask, share, causal, plans)[0][0]


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
        plans = arguments.pop("attention_plans")
        outputs = model(
            inputs_embeds=inputs,
            attention_mask=PADDING,
            **arguments,
            **({"attention_plans": plans} if shared else {}),
        )
        total = sum(value for value, _ in method.losses(outputs, batch()).values())
        found.append([total, *gradients(total, model, inputs)])
    # Without plans each layer makes its own, in the second forward pass of checkpointing again.
    assert len(made) == 1 + LAYERS * (1 + checkpointing)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_plan_is_for_these_tensors_and_this_request(made):
    plans = RowPlans()
    pair = query()
    mask = full_mask().tril(12)
    requests = [{}, {"mask": mask}, {"mask": mask.clone()}, {"share": True}, {"causal": True}]
    first = [attend(plans, pair, **request) for request in requests]
    again = [attend(plans, pair, **request) for request in requests]
    assert len(made) == len(requests)
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)


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


@pytest.mark.parametrize("width", [1, 2, 7, 15, 16, 17])
def test_few_columns_are_normalized_as_many(width):
    """Fewer columns than a vector register has numbers are computed in another order of memory."""
    states = torch.randn(2, 2, 3, LENGTH, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = torch.arange(9).expand(2, -1)
    columns = torch.arange(width).expand(2, -1)
    single = states.float().requires_grad_()
    ((found, _),) = attend_rows(single[0], single[1], [(rows, columns)], 0.3, None, share=False)
    scores = 0.3 * states[0][:, :, :9] @ states[1][:, :, :width].transpose(2, 3)
    expected = scores - scores.exp().sum(-1, keepdim=True).log()
    torch.testing.assert_close(found, expected.float())
    found[..., 0].sum().backward()
    wanted = states[1][:, :, :1] - expected.exp() @ states[1][:, :, :width]
    torch.testing.assert_close(single.grad[0][:, :, :9], 0.3 * wanted.float())


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("examples", [0, 2])
def test_no_rows_and_no_examples_give_empty_reports(share, examples):
    states = torch.randn(2, examples, LENGTH, 4, 8).transpose(2, 3)
    none = (torch.zeros(examples, 0, dtype=torch.long), torch.zeros(examples, 5, dtype=torch.long))
    for layout in (states, states.contiguous()):
        ((log_alpha, log_share),) = attend_rows(layout[0], layout[1], [none], 0.3, None, share)
        assert log_alpha.shape == (examples, 4, 0, 5)
        assert (log_share is None) != share

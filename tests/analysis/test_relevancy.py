# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Relevancy maps and rollout against loops and against rules by hand, in one stream and in two."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn
from torch.testing import assert_close

from grounded_attention.analysis.relevancy import MAPS, ReadOut, attention_relevancy, region_maps
from grounded_attention.modeling.attention_calls import SEQUENCE
from grounded_attention.supervision.rollout import attention_rollout
from tests.helpers.explained_models import answered, first_words, identified, lively, lxmert, tiny_inputs, vilbert
from tests.helpers.tiny_vgp import tiny_model


def eager_maps(model, inputs):
    """The attention maps of all calls, as means over heads."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = model(**inputs, output_attentions=True).attentions
    return [attention.mean(1) for attention in maps]


def by_loops(attentions, gradients):
    """Chefer's rule, one number at a time, from attention and gradients (H, N, N) of the layers of one example."""
    heads, size, _ = attentions[0].shape
    relevancy = np.eye(size)
    for attention, gradient in zip(attentions, gradients, strict=True):
        product = (attention * gradient).numpy()
        after = relevancy.copy()
        for i in range(size):
            for k in range(size):
                weight = sum(max(product[head, i, k], 0.0) for head in range(heads)) / heads
                for j in range(size):
                    after[i, j] += weight * relevancy[k, j]
        relevancy = after
    return relevancy


@pytest.fixture(scope="module")
def reference():
    """Attention and gradients of a tiny VL-BERT by `backward`, another way to the same gradients."""
    model = lively(attn_implementation="eager")
    outputs = model(**tiny_inputs(), output_attentions=True)
    for attention in outputs.attentions:
        attention.retain_grad()
    outputs.identification_logits.max(-1).values.sum().backward()
    gradients = [attention.grad for attention in outputs.attentions]
    return [attention.detach() for attention in outputs.attentions], gradients


def test_relevancy_is_that_of_loops(reference):
    attentions, gradients = reference
    found = attention_relevancy(attentions, gradients)[SEQUENCE, SEQUENCE]
    for row in range(3):
        of_example = [attention[row] for attention in attentions]
        expected = by_loops(of_example, [gradient[row] for gradient in gradients])
        assert_allclose(found[row], expected, rtol=1e-4, atol=1e-7)
    assert (found - torch.eye(found.shape[-1])).abs().max() > 1e-2


def test_maps_of_a_model_are_rows_of_the_whole_maps(reference):
    attentions, gradients = reference
    model = lively()
    assert model.config._attn_implementation == "sdpa"
    found = region_maps(model, tiny_inputs(), identified)
    assert model.config._attn_implementation == "sdpa"
    assert tuple(found) == MAPS
    means = [attention.mean(1) for attention in attentions]
    whole = {
        "raw_last": means[-1],
        "raw_mean": sum(means) / len(means),
        "rollout": attention_rollout(means)[-1],
        "relevancy": attention_relevancy(attentions, gradients)[SEQUENCE, SEQUENCE],
    }
    for name, expected in whole.items():
        assert_allclose(found[name], expected[:, 0, 5:9], rtol=1e-4, atol=1e-7, err_msg=name)
        assert found[name].shape == (3, 4)
        assert (found[name] >= 0).all()
        assert found[name][0, 3] == 0, f"{name} of a padded region"


def test_examples_of_a_batch_do_not_touch_each_other():
    inputs = tiny_inputs()
    model = lively()
    together = region_maps(model, inputs, identified)
    alone = region_maps(model, {name: value[1:2] for name, value in inputs.items()}, identified)
    for name in MAPS:
        assert_allclose(together[name][1:2], alone[name], rtol=1e-4, atol=1e-7)


def test_relevancy_follows_the_decision_and_raw_attention_does_not():
    model = lively()
    inputs = tiny_inputs()

    first = region_maps(model, inputs, lambda outputs, _: first_words(outputs.identification_logits[:, 0]))
    second = region_maps(model, inputs, lambda outputs, _: first_words(outputs.identification_logits[:, 1]))
    assert (first["relevancy"] - second["relevancy"]).abs().max() > 1e-3
    for name in ("raw_last", "raw_mean", "rollout"):
        assert_close(first[name], second[name])


def test_what_has_no_maps_is_refused():
    with pytest.raises(ValueError, match=r"unknown maps gradcam; expected some of raw_last"):
        region_maps(tiny_model().eval(), tiny_inputs(), identified, ("gradcam",))
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        region_maps(tiny_model().train(), tiny_inputs(), identified)
    with pytest.raises(ValueError, match="need no gradients"):
        region_maps(tiny_model().eval().requires_grad_(False), tiny_inputs(), identified)


# Two streams


@pytest.mark.parametrize("make", [lxmert, vilbert])
def test_raw_attention_is_that_of_the_cross_calls(make):
    model = make()
    inputs = tiny_inputs()
    found = region_maps(model, inputs, answered, ("raw_last", "raw_mean", "rollout"))
    first, last = (attention[:, 0] for attention in eager_maps(model, inputs) if attention.shape[1:] == (5, 4))
    assert_close(found["raw_last"], last)
    assert_close(found["raw_mean"], (first + last) / 2)
    # of 12, one is padding
    assert found["rollout"].shape == (3, 4)
    assert (found["rollout"] > 0).sum() == 11


def test_a_region_is_read_from_the_stream_of_regions():
    model = vilbert()
    inputs = tiny_inputs()

    def third_region(outputs, inputs):
        return ReadOut(outputs.logits.max(-1).values, torch.full((3,), 5 + 2))

    found = region_maps(model, inputs, third_region, ("raw_last",))["raw_last"]
    own = [attention for attention in eager_maps(model, inputs) if attention.shape[1:] == (4, 4)]
    assert_close(found, own[-1][:, 2] * inputs["region_attention_mask"])


def test_a_model_without_maps_is_refused():
    class NoMaps(nn.Module):
        config = vilbert().config

        def forward(self, output_attentions, **inputs):
            return vilbert()(**inputs)

        def set_attn_implementation(self, name):
            pass

    with pytest.raises(ValueError, match="NoMaps returns no attention maps"):
        region_maps(NoMaps().eval(), tiny_inputs(), answered)


def normal(relevancy):
    """Chefer et al., equations 8 and 9, with numpy."""
    added = relevancy - np.eye(len(relevancy))
    sums = added.sum(1, keepdims=True)
    return np.divide(added, sums, out=np.zeros_like(added), where=sums > 0) + np.eye(len(relevancy))


def two_streams_by_hand(model, inputs, row):
    """The rules for one example, each attention by name and not in a loop over calls: first the text layers, then the
    region layer, then cross, text and region of each cross layer.
    """
    model.set_attn_implementation("eager")
    one = {name: value[row : row + 1] for name, value in inputs.items()}
    outputs = model(**one, output_attentions=True)
    for attention in outputs.attentions:
        attention.retain_grad()
    answered(outputs, one).score.sum().backward()
    names = "t0 t1 v0 to_regions0 to_words0 xt0 xv0 to_regions1 to_words1 xt1 xv1".split()
    attentions = dict(zip(names, outputs.attentions, strict=True))

    def weighted(name):
        attention = attentions[name]
        if attention.grad is None:
            return np.zeros(attention.shape[2:])
        return (attention.grad * attention).detach()[0].clamp(min=0).mean(0).double().numpy()

    words = one["input_ids"].shape[1]
    regions = one["region_features"].shape[1]
    tt = np.eye(words)
    vv = np.eye(regions)
    tv = np.zeros((words, regions))
    vt = np.zeros((regions, words))
    for n in range(2):
        tt = tt + weighted(f"t{n}") @ tt
        tv = tv + weighted(f"t{n}") @ tv
    vv = vv + weighted("v0") @ vv
    vt = vt + weighted("v0") @ vt
    for n in range(2):
        to_regions = weighted(f"to_regions{n}")
        to_words = weighted(f"to_words{n}")
        tt, tv, vv, vt = (
            tt + to_regions @ vt,
            tv + normal(tt).T @ to_regions @ normal(vv),
            vv + to_words @ tv,
            vt + normal(vv).T @ to_words @ normal(tt),
        )
        tt = tt + weighted(f"xt{n}") @ tt
        tv = tv + weighted(f"xt{n}") @ tv
        vv = vv + weighted(f"xv{n}") @ vv
        vt = vt + weighted(f"xv{n}") @ vt
    return tv[0]


def test_relevancy_of_lxmert_is_that_of_the_rules_by_hand():
    model = lxmert()
    inputs = tiny_inputs()
    found = region_maps(model, inputs, answered, ("relevancy",))["relevancy"]
    assert found.shape == (3, 4)
    assert found[0, 3] == 0
    assert found.max() > 1e-3
    for row in range(3):
        assert_allclose(found[row], two_streams_by_hand(model, inputs, row), rtol=1e-3, atol=1e-6)

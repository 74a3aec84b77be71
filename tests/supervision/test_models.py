# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The methods on whole models: VL-BERT without maps, and the models that a method refuses."""

import pytest
import torch
from torch.testing import assert_close

from grounded_attention.modeling import (
    VisualBERTForPhraseGrounding,
    VisualBERTForVGP,
    VLBertForReferringExpression,
    VLBertForVGP,
)
from grounded_attention.supervision import get_method
from tests.helpers import tiny_vl_bert
from tests.helpers.supervision_models import bert, forbid_maps
from tests.helpers.tiny_visualbert import make_model as make_visualbert
from tests.helpers.tiny_vl_bert import B, R, T

FIELDS = {"num_attention_heads": 4, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FAMILIES = {
    "vl_bert": lambda: tiny_vl_bert.make_model(VLBertForVGP, region_dropout=0.0, **FIELDS),
    "visualbert": lambda: make_visualbert(VisualBERTForVGP, **FIELDS),
}


def mean_loss(losses):
    return sum(total / count for total, count in losses.values())


def encoder_weights(model):
    """Weights that the attention of the last layer depends on."""
    below, last = model.base_model.encoder.layer
    words = model.base_model.embeddings.word_embeddings.weight
    return [last.attention.self.query.weight, last.attention.self.key.weight, *below.parameters(), words]


# Example, phrase, its tokens and its regions.
PHRASES = [(0, 0, [1, 2], [1]), (0, 1, [4], [0]), (1, 0, [2], [1, 2]), (2, 1, [3], [3])]


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
@pytest.mark.parametrize("family", FAMILIES)
def test_direct_equals_eager_maps_and_builds_none(family, checkpointing):
    model = FAMILIES[family]()
    inputs = tiny_vl_bert.make_inputs()
    batch = {**inputs, "phrase_mask": torch.zeros(B, 2, T).bool(), "phrase_regions": torch.zeros(B, 2, R).bool()}
    for example, phrase, tokens, regions in PHRASES:
        batch["phrase_mask"][example, phrase, tokens] = True
        batch["phrase_regions"][example, phrase, regions] = True
    method = get_method("direct")
    model.set_attn_implementation("eager")
    maps = model(**inputs, output_attentions=True).attentions
    places = torch.arange(T + R).expand(B, -1)
    placed = {**batch, "text_positions": places[:, :T], "region_positions": places[:, T:]}
    expected = mean_loss(method.maps_losses(maps, placed))
    wanted = torch.autograd.grad(expected, encoder_weights(model))
    model.set_attn_implementation("sdpa")
    method.prepare(model)
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.train()
    with forbid_maps(B, 4, maps[0].shape[-1]):
        loss = mean_loss(method.losses(model(**inputs, **method.forward_kwargs(batch)), batch))
        found = torch.autograd.grad(loss, encoder_weights(model))
    assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    assert_close(found, wanted, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    "make, cls, fields",
    [
        (tiny_vl_bert.make_model, VLBertForVGP, {}),
        (tiny_vl_bert.make_model, VLBertForReferringExpression, {"grounding_head": True}),
        (make_visualbert, VisualBERTForPhraseGrounding, {"grounding_head": True}),
    ],
)
def test_a_model_or_a_class_without_grounding_head_is_refused(make, cls, fields):
    with pytest.raises(ValueError, match=f"this {cls.__name__} has none"):
        get_method("indirect").prepare(make(cls, **fields))


def test_a_model_outside_the_attention_interface_is_refused():
    model = bert()
    model.set_attn_implementation = lambda name: None  # what transformers does for old models, besides a warning
    with pytest.raises(ValueError, match="AttentionInterface"):
        get_method("direct").prepare(model)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes that the words' states must tell: targets and loss by loops, the head in both families, what is refused."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch.testing import assert_close

from grounded_attention.modeling import VisualBERTForVGP, VLBertForVGP
from grounded_attention.supervision import align, get_method
from grounded_attention.supervision.layer_losses import box_loss, word_boxes
from grounded_attention.training.experiments.models import make_model
from grounded_attention.training.recipes.recipe import Model
from tests.helpers.tiny_vgp import losses_of, run_supervised, tiny_batch, tiny_model, tiny_processor
from tests.helpers.tiny_visualbert import make_inputs as visualbert_inputs
from tests.helpers.tiny_visualbert import make_model as visualbert_model
from tests.helpers.tiny_vl_bert import make_inputs as vl_bert_inputs
from tests.helpers.tiny_vl_bert import make_model as vl_bert_model

FAMILIES = {
    "vl_bert": (vl_bert_model, VLBertForVGP, vl_bert_inputs),
    "visualbert": (visualbert_model, VisualBERTForVGP, visualbert_inputs),
}


def box_of(batch, row, token):
    """The box around all regions of all phrases of a token, as centre and size; None for none."""
    boxes = []
    for mask, regions in zip(batch["phrase_mask"][row], batch["phrase_regions"][row], strict=True):
        if mask[token] and batch["attention_mask"][row, token]:
            boxes.append(batch["region_boxes"][row, regions.bool()])
    boxes = torch.cat(boxes) if boxes else torch.zeros(0, 4)
    if not len(boxes):
        return None
    corner = boxes[:, :2].amin(0)
    size = boxes[:, 2:].amax(0) - corner
    return torch.cat([corner + size / 2, size])


def tiny(family, **fields):
    """A model of the family, and inputs."""
    make, cls, make_inputs = FAMILIES[family]
    return make(cls, **fields), make_inputs()


def test_targets_and_loss_equal_loops():
    batch = tiny_batch()
    boxes, named = word_boxes(align(batch), batch["region_boxes"])
    pred = torch.rand(boxes.shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    total = 0.0
    for row, token in np.ndindex(*named.shape):
        expected = box_of(batch, row, token)
        assert named[row, token] == (expected is not None)
        if expected is None:
            expected = torch.zeros(4)
        else:
            total += (pred[row, token] - expected).square().sum().item()
        assert_close(boxes[row, token], expected, atol=1e-6, rtol=0)
    assert (batch["phrase_regions"].sum(-1) > 1).any()
    assert named.any()
    assert not named.all()
    loss = box_loss(pred, boxes, named)
    assert loss.item() == pytest.approx(total, rel=1e-5)
    loss.backward()
    assert torch.equal(pred.grad.any(-1), named)


def test_no_regions_at_all_is_a_batch_without_targets():
    boxes, named = word_boxes(torch.zeros(2, 3, 0, dtype=torch.bool), torch.zeros(2, 0, 4))
    assert boxes.shape == (2, 3, 4)
    assert boxes.eq(0).all()
    assert not named.any()


@pytest.mark.parametrize("box_layer", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
class TestHead:
    def test_boxes_are_read_off_the_words_of_the_layer(self, family, box_layer):
        model, inputs = tiny(family, box_layer=box_layer)
        outputs = model(**inputs)
        assert outputs.hidden_states is None
        assert "hidden_states" not in outputs
        text = inputs["input_ids"].shape[1]
        states = model(**inputs, output_hidden_states=True).hidden_states[box_layer + 1][:, :text]
        expected = (states @ model.box_head.weight.T + model.box_head.bias).sigmoid()
        assert_close(outputs.pred_boxes, expected)

    def test_all_else_stays_as_without_the_head(self, family, box_layer):
        model, inputs = tiny(family, box_layer=box_layer)
        plain, _ = tiny(family)
        plain.load_state_dict(model.state_dict(), strict=False)
        assert plain.box_head is None
        expected = plain(**inputs)
        assert expected.pred_boxes is None
        assert_close(model(**inputs).identification_logits, expected.identification_logits)

    def test_layers_above_get_no_gradient(self, family, box_layer):
        model, inputs = tiny(family, box_layer=box_layer)
        model(**inputs).pred_boxes.sum().backward()
        first, second = model.base_model.encoder.layer
        assert first.output.dense.weight.grad.any()
        above = second.output.dense.weight.grad
        assert (above is not None and above.any()) == (box_layer == 1)

    def test_states_are_given_as_they_are_asked_for(self, family, box_layer):
        model, inputs = tiny(family, box_layer=box_layer)
        outputs = model(**inputs, output_hidden_states=False)
        assert outputs.hidden_states is None
        values = model(**inputs, return_dict=False)
        assert not any(isinstance(value, tuple) for value in values)
        assert any(torch.equal(value, outputs.pred_boxes) for value in values)
        model.config.output_hidden_states = True
        assert len(model(**inputs).hidden_states) == 3

    def test_gradient_checkpointing_gives_the_same_gradients(self, family, box_layer):
        found = []
        for checkpointing in (False, True):
            model, inputs = tiny(
                family, box_layer=box_layer, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
            )
            model.train()
            if checkpointing:
                model.gradient_checkpointing_enable()
            model(**inputs).pred_boxes.square().sum().backward()
            found.append({name: parameter.grad for name, parameter in model.named_parameters()})
        assert found[0]["box_head.weight"].any()
        assert_close(*found, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("box_layer", [-1, 2])
def test_a_layer_that_the_model_has_not_is_refused(family, box_layer):
    with pytest.raises(StrictDataclassError, match=rf"box_layer \({box_layer}\)"):
        tiny(family, box_layer=box_layer)


# The loss component


@pytest.mark.parametrize("name", ["direct", "semi_direct"])
def test_the_weight_is_a_factor_and_attention_losses_stay(name):
    batch = tiny_batch()
    model = tiny_model(box_layer=0)
    plain = losses_of(model, get_method(name), batch)
    once = losses_of(model, get_method(name, box_weight=1), batch)
    twice = losses_of(model, get_method(name, box_weight=2), batch)
    total, count = once.pop("boxes")
    assert count == once["text_to_region"][1] > 0
    assert_close(once, plain)
    assert_close(twice["boxes"][0], 2 * total)


@pytest.mark.parametrize(
    "make, found",
    [
        (tiny_model, "none"),
        (lambda: tiny_model(box_layer=1), "one in layer 1"),
        (lambda: tiny_model(box_layer=0).vl_bert, "none"),
    ],
    ids=["without head", "head in another layer", "base model"],
)
def test_a_model_without_the_head_is_refused(make, found):
    method = get_method("direct", box_weight=1.0)
    with pytest.raises(ValueError, match=rf"layer 0.* has {found}"):
        method.prepare(make())


@pytest.mark.parametrize(
    "change, lacking, words",
    [
        ({"pred_boxes": None}, None, "no pred_boxes"),
        ({"pred_boxes": torch.zeros(1, 1, 4)}, None, "pred_boxes of the shape"),
        ({}, "region_boxes", "no region_boxes"),
    ],
)
def test_what_outputs_and_batch_lack_is_named(change, lacking, words):
    batch = tiny_batch()
    method = get_method("direct", box_weight=1.0)
    outputs = run_supervised(tiny_model(box_layer=0), method, batch)
    given = SimpleNamespace(**{"attentions": outputs.attentions, "pred_boxes": outputs.pred_boxes, **change})
    batch.pop(lacking, None)
    with pytest.raises(ValueError, match=words):
        method.losses(given, batch)


# In a recipe


def test_a_model_that_goes_on_without_boxes_drops_the_head(tmp_path):
    tiny_model(box_layer=1).save_pretrained(tmp_path)
    source = Model(source=str(tmp_path))
    without = make_model("vgp", source, tiny_processor(), **get_method("none").model_config)
    assert without.config.box_layer is None
    assert without.box_head is None
    other = make_model("vgp", source, tiny_processor(), **get_method("direct", box_weight=1).model_config)
    assert other.config.box_layer == 0
    assert other.box_head is not None

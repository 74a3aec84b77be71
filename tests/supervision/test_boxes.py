# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes that the words' states must tell: targets and loss by loops, the head in both families, what is refused."""

from types import SimpleNamespace

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from grounded_attention.modeling import VisualBERTForVGP, VLBertForVGP
from grounded_attention.supervision import align, get_method
from grounded_attention.supervision.box_loss import box_loss, word_boxes
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
    around = None
    for mask, regions in zip(batch["phrase_mask"][row], batch["phrase_regions"][row], strict=True):
        if not mask[token] or not batch["attention_mask"][row, token]:
            continue
        for region in regions.nonzero()[:, 0].tolist():
            x1, y1, x2, y2 = batch["region_boxes"][row, region].tolist()
            a, b, c, d = around or (x1, y1, x2, y2)
            around = min(a, x1), min(b, y1), max(c, x2), max(d, y2)
    if around is None:
        return None
    x1, y1, x2, y2 = around
    return [(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1]


def test_targets_and_loss_equal_loops():
    batch = tiny_batch()
    boxes, named = word_boxes(align(batch), batch["region_boxes"])
    pred = torch.rand(boxes.shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    total = 0.0
    for row in range(len(boxes)):
        for token in range(boxes.shape[1]):
            expected = box_of(batch, row, token)
            assert named[row, token] == (expected is not None)
            if expected is not None:
                assert boxes[row, token].tolist() == pytest.approx(expected, abs=1e-6)
                total += sum((a - b) ** 2 for a, b in zip(pred[row, token].tolist(), expected, strict=True))
            else:
                assert boxes[row, token].eq(0).all()
    assert (batch["phrase_regions"].sum(-1) > 1).any()
    assert named.any()
    assert not named.all()
    loss = box_loss(pred, boxes, named)
    assert loss.item() == pytest.approx(total, rel=1e-5)
    loss.backward()
    assert pred.grad[~named].eq(0).all()
    assert pred.grad[named].ne(0).any(-1).all()


def test_no_regions_at_all_is_a_batch_without_targets():
    boxes, named = word_boxes(torch.zeros(2, 3, 0, dtype=torch.bool), torch.zeros(2, 0, 4))
    assert boxes.shape == (2, 3, 4)
    assert boxes.eq(0).all()
    assert not named.any()


@pytest.mark.parametrize("box_layer", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
class TestHead:
    def test_boxes_are_read_off_the_words_of_the_layer(self, family, box_layer):
        make, cls, make_inputs = FAMILIES[family]
        model = make(cls, box_layer=box_layer)
        inputs = make_inputs()
        outputs = model(**inputs)
        assert outputs.hidden_states is None
        assert "hidden_states" not in outputs
        text = inputs["input_ids"].shape[1]
        states = model(**inputs, output_hidden_states=True).hidden_states[box_layer + 1][:, :text]
        expected = 1 / (1 + torch.exp(-(states @ model.box_head.weight.T + model.box_head.bias)))
        torch.testing.assert_close(outputs.pred_boxes, expected)
        assert outputs.pred_boxes.shape == (*inputs["input_ids"].shape, 4)

    def test_all_else_stays_as_without_the_head(self, family, box_layer):
        make, cls, make_inputs = FAMILIES[family]
        model = make(cls, box_layer=box_layer)
        plain = make(cls)
        plain.load_state_dict(model.state_dict(), strict=False)
        assert plain.box_head is None
        assert plain(**make_inputs()).pred_boxes is None
        found = model(**make_inputs())
        expected = plain(**make_inputs())
        torch.testing.assert_close(found.identification_logits, expected.identification_logits)

    def test_layers_above_get_no_gradient(self, family, box_layer):
        make, cls, make_inputs = FAMILIES[family]
        model = make(cls, box_layer=box_layer)
        model(**make_inputs()).pred_boxes.sum().backward()
        layers = getattr(model, model.base_model_prefix).encoder.layer
        for index, layer in enumerate(layers):
            gradient = layer.output.dense.weight.grad
            assert (gradient is not None and gradient.abs().sum() > 0) == (index <= box_layer)

    def test_states_are_given_as_they_are_asked_for(self, family, box_layer):
        make, cls, make_inputs = FAMILIES[family]
        model = make(cls, box_layer=box_layer)
        inputs = make_inputs()
        assert model(**inputs, output_hidden_states=False).hidden_states is None
        boxes = model(**inputs).pred_boxes
        assert any(value is not None and torch.equal(value, boxes) for value in model(**inputs, return_dict=False))
        assert not any(isinstance(value, tuple) for value in model(**inputs, return_dict=False))
        model.config.output_hidden_states = True
        assert len(model(**inputs).hidden_states) == 3

    def test_gradient_checkpointing_gives_the_same_gradients(self, family, box_layer):
        make, cls, make_inputs = FAMILIES[family]
        found = []
        for checkpointing in (False, True):
            model = make(cls, box_layer=box_layer, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train()
            if checkpointing:
                model.gradient_checkpointing_enable()
            model(**make_inputs()).pred_boxes.square().sum().backward()
            found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        assert found[0].keys() == found[1].keys()
        assert "box_head.weight" in found[0]
        for name, gradient in found[0].items():
            torch.testing.assert_close(found[1][name], gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("box_layer", [-1, 2])
def test_a_layer_that_the_model_has_not_is_refused(family, box_layer):
    make, cls, _ = FAMILIES[family]
    with pytest.raises(StrictDataclassError, match=rf"box_layer \({box_layer}\)"):
        make(cls, box_layer=box_layer)


# The loss component


@pytest.mark.parametrize("name", ["direct", "semi_direct"])
def test_the_weight_is_a_factor_and_attention_losses_stay(name):
    batch = tiny_batch()
    model = tiny_model(box_layer=0)
    plain = losses_of(model, get_method(name), batch)
    once, twice = (losses_of(model, get_method(name, box_weight=weight), batch) for weight in (1, 2))
    assert "boxes" not in plain
    assert [*plain, "boxes"] == list(once)
    for direction, (total, _) in plain.items():
        torch.testing.assert_close(once[direction][0], total)
    torch.testing.assert_close(twice["boxes"][0], 2 * once["boxes"][0])
    assert once["boxes"][1] == once["text_to_region"][1] > 0


@pytest.mark.parametrize(
    ("make", "found"),
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


def test_what_outputs_and_batch_lack_is_named():
    batch = tiny_batch()
    method = get_method("direct", box_weight=1.0)
    outputs = run_supervised(tiny_model(box_layer=0), method, batch)
    with pytest.raises(ValueError, match="no pred_boxes"):
        method.losses(SimpleNamespace(attentions=outputs.attentions), batch)
    wide = SimpleNamespace(attentions=outputs.attentions, pred_boxes=outputs.pred_boxes[:, 1:])
    with pytest.raises(ValueError, match="pred_boxes of the shape"):
        method.losses(wide, batch)
    with pytest.raises(ValueError, match="no region_boxes"):
        method.losses(outputs, {key: value for key, value in batch.items() if key != "region_boxes"})


# In a recipe


def test_a_model_that_goes_on_without_boxes_drops_the_head(tmp_path):
    tiny_model(box_layer=1).save_pretrained(tmp_path)
    for method, layer in ((get_method("none"), None), (get_method("direct", box_weight=1), 0)):
        model = make_model("vgp", Model(source=str(tmp_path)), tiny_processor(), **method.model_config)
        assert model.config.box_layer == layer
        assert (model.box_head is None) == (layer is None)

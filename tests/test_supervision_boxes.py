# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes that the words' states must tell: targets and loss by loops, the head in both families, what is refused."""

from types import SimpleNamespace

import pytest
import torch
from test_modeling_visualbert import make_inputs as visualbert_inputs
from test_modeling_visualbert import make_model as visualbert_model
from test_modeling_vl_bert import make_inputs as vl_bert_inputs
from test_modeling_vl_bert import make_model as vl_bert_model
from transformers import TrainingArguments

from attention_supervision import get_method
from attention_supervision.boxes import box_loss, word_boxes
from evaluation import AttentionGrounding
from modeling import VisualBERTForVGP, VLBertForVGP
from tasks import TASKS
from tests.tiny_vgp import tiny_model, tiny_processor, tiny_rows, tiny_table
from training.data import Collator
from training.trainer import GroundingTrainer

FAMILIES = {
    "vl_bert": (vl_bert_model, VLBertForVGP, vl_bert_inputs),
    "visualbert": (visualbert_model, VisualBERTForVGP, visualbert_inputs),
}


def tiny_batch():
    table = tiny_table(8)
    return Collator(TASKS["vgp"], tiny_processor(), table)(list(tiny_rows(table)))


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
    boxes, named = word_boxes(batch)
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
    assert (batch["phrase_regions"].sum(-1) > 1).any() and named.any() and not named.all()
    loss = box_loss(pred, boxes, named)
    assert loss.item() == pytest.approx(total, rel=1e-5)
    loss.backward()
    assert pred.grad[~named].eq(0).all() and pred.grad[named].ne(0).any(-1).all()


def test_no_regions_at_all_is_a_batch_without_targets():
    batch = {
        "phrase_mask": torch.ones(2, 1, 3, dtype=torch.bool),
        "phrase_regions": torch.zeros(2, 1, 0, dtype=torch.bool),
        "region_boxes": torch.zeros(2, 0, 4),
    }
    boxes, named = word_boxes(batch)
    assert boxes.shape == (2, 3, 4) and boxes.eq(0).all() and not named.any()


@pytest.mark.parametrize("box_layer", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
class TestHead:
    def test_boxes_are_read_off_the_words_of_the_layer(self, family, box_layer):
        make, cls, make_inputs = FAMILIES[family]
        model, inputs = make(cls, box_layer=box_layer), make_inputs()
        outputs = model(**inputs)
        assert outputs.hidden_states is None and "hidden_states" not in outputs
        text = inputs["input_ids"].shape[1]
        states = model(**inputs, output_hidden_states=True).hidden_states[box_layer + 1][:, :text]
        expected = 1 / (1 + torch.exp(-(states @ model.box_head.weight.T + model.box_head.bias)))
        torch.testing.assert_close(outputs.pred_boxes, expected)
        assert outputs.pred_boxes.shape == (*inputs["input_ids"].shape, 4)

    def test_all_else_stays_as_without_the_head(self, family, box_layer):
        make, cls, make_inputs = FAMILIES[family]
        model, plain = make(cls, box_layer=box_layer), make(cls)
        plain.load_state_dict(model.state_dict(), strict=False)
        assert plain.box_head is None and plain(**make_inputs()).pred_boxes is None
        found, expected = model(**make_inputs()), plain(**make_inputs())
        torch.testing.assert_close(found.identification_logits, expected.identification_logits)

    def test_layers_above_get_no_gradient(self, family, box_layer):
        make, cls, make_inputs = FAMILIES[family]
        model = make(cls, box_layer=box_layer)
        model(**make_inputs()).pred_boxes.sum().backward()
        layers = getattr(model, model.base_model_prefix).encoder.layer
        for index, layer in enumerate(layers):
            gradient = layer.output.dense.weight.grad
            assert (gradient is not None and gradient.abs().sum() > 0) == (index <= box_layer)

    def test_saved_and_loaded(self, family, box_layer, tmp_path):
        make, cls, make_inputs = FAMILIES[family]
        model = make(cls, box_layer=box_layer)
        model.save_pretrained(tmp_path)
        loaded = cls.from_pretrained(tmp_path)
        assert loaded.config.box_layer == box_layer
        assert torch.equal(loaded(**make_inputs()).pred_boxes, model(**make_inputs()).pred_boxes)

    def test_without_padding_in_the_layers_the_same(self, family, box_layer):
        make, cls, make_inputs = FAMILIES[family]
        padded, packed = make(cls, box_layer=box_layer), make(cls, box_layer=box_layer, unpad=True)
        words = make_inputs()["attention_mask"].bool()
        first, second = (model(**make_inputs()).pred_boxes[words] for model in (padded, packed))
        torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("box_layer", [-1, 2])
def test_a_layer_that_the_model_has_not_is_refused(family, box_layer):
    make, cls, _ = FAMILIES[family]
    with pytest.raises(Exception, match=rf"box_layer \({box_layer}\) must be one of the 2 layers"):
        make(cls, box_layer=box_layer)


# The loss component


def losses_of(method, model, batch):
    method.prepare(model)
    given = {name: batch[name] for name in TASKS["vgp"].model_inputs if name in batch}
    return method.losses(model(**given, **method.forward_kwargs(batch)), batch)


def training_arguments(directory, **arguments):
    fixed = {"save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True, "seed": 3}
    return TrainingArguments(str(directory), **fixed, remove_unused_columns=False, label_names=[], **arguments)


@pytest.mark.parametrize("name", ["direct", "semi_direct"])
def test_the_weight_is_a_factor_and_attention_losses_stay(name):
    batch, model = tiny_batch(), tiny_model(box_layer=0)
    plain = losses_of(get_method(name), model, batch)
    once, twice = (losses_of(get_method(name, box_weight=weight), model, batch) for weight in (1, 2))
    assert "boxes" not in plain and [*plain, "boxes"] == list(once)
    for direction, (total, _) in plain.items():
        torch.testing.assert_close(once[direction][0], total)
    torch.testing.assert_close(twice["boxes"][0], 2 * once["boxes"][0])
    assert once["boxes"][1] == once["text_to_region"][1] > 0


def test_the_trainer_logs_the_component_and_lowers_it(tmp_path):
    table, method = tiny_table(8), get_method("direct", box_weight=5.0)
    model = tiny_model(**method.model_config)
    method.prepare(model)
    arguments = {"max_steps": 40, "learning_rate": 3e-3, "logging_steps": 10, "per_device_train_batch_size": 16}
    trainer = GroundingTrainer(
        model,
        training_arguments(tmp_path, **arguments),
        data_collator=Collator(TASKS["vgp"], tiny_processor(), table, seed=3),
        train_dataset=tiny_rows(table),
        task=TASKS["vgp"],
        metrics=lambda: [AttentionGrounding()],
        method=method,
    )
    trainer.train()
    logged = [entry["loss_boxes"] for entry in trainer.state.log_history if "loss_boxes" in entry]
    assert len(logged) == 4 and logged[-1] < 0.8 * logged[0]


@pytest.mark.parametrize(
    "make",
    [tiny_model, lambda: tiny_model(box_layer=1), lambda: tiny_model(box_layer=0).vl_bert],
    ids=["without head", "head in another layer", "base model"],
)
def test_a_model_without_the_head_is_refused(make):
    method = get_method("direct", box_weight=1.0)
    with pytest.raises(
        ValueError, match=r"needs a box head in that layer, .* make a model for VGP with .*box_layer=0"
    ):
        method.prepare(make())


def test_what_outputs_and_batch_lack_is_named():
    batch = tiny_batch()
    method, model = get_method("direct", box_weight=1.0), tiny_model(box_layer=0)
    method.prepare(model)
    given = {name: batch[name] for name in TASKS["vgp"].model_inputs if name in batch}
    outputs = model(**given, **method.forward_kwargs(batch))
    with pytest.raises(ValueError, match="no pred_boxes"):
        method.losses(SimpleNamespace(attentions=outputs.attentions), batch)
    with pytest.raises(ValueError, match="no region_boxes"):
        method.losses(outputs, {key: value for key, value in batch.items() if key != "region_boxes"})

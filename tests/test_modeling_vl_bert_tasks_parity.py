# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VQA, RefCOCO+ and VCR equal the public task modules: logits, every loss, on any padding."""

from pathlib import Path

import pytest
import torch
from test_modeling_vl_bert_parity import CLOSE, GivenVisual
from torch import nn
from vl_bert_reference import as_checkpoint, load_fixture, load_weights, make_config
from vl_bert_task_reference import choice_inputs, referring_inputs, vqa_inputs

from modeling import VLBertForMultipleChoice, VLBertForReferringExpression, VLBertForVisualQuestionAnswering

TEXT = ("input_ids", "attention_mask", "token_type_ids", "token_regions")
VQA_ANSWERS = 13


def build(cls, reference, visual=None, **overrides):
    """The model with the weights of a reference; `visual` stands in for its region encoder."""
    config = reference["config"]
    model = cls(make_config(config.get("NETWORK", {}).get("VLBERT", config), **overrides)).eval()
    weights = reference["state_dict"]
    if model.vl_bert.pooler is None:
        # The public modules may have one, but read it in VCR only.
        weights = {key: value for key, value in weights.items() if ".pooler." not in key}
    load_weights(model, as_checkpoint(weights))
    if visual is not None:
        model.vl_bert.region_encoder = GivenVisual(visual)
    return model


def pad_left(inputs, columns=2):
    """The same text behind columns of padding."""
    padded = {name: nn.functional.pad(inputs[name], (columns, 0)) for name in TEXT if name in inputs}
    if "answer_positions" in inputs:
        padded["answer_positions"] = inputs["answer_positions"] + columns
    return {**inputs, **padded}


def check_vqa(model, reference):
    inputs = vqa_inputs(reference["inputs"])
    for given in (inputs, pad_left(inputs)):
        outputs = model(**given)
        torch.testing.assert_close(outputs.logits, reference["logits"], **CLOSE)
        torch.testing.assert_close(outputs.loss, reference["loss"], **CLOSE)


def check_referring(model, reference):
    inputs = referring_inputs(reference["inputs"])
    mask = inputs["region_attention_mask"]
    for given in (inputs, pad_left(inputs)):
        outputs = model(**given)
        torch.testing.assert_close(outputs.logits[mask], reference["logits"][mask], **CLOSE)
        assert (outputs.logits[~mask] == -10000.0).all()
        torch.testing.assert_close(outputs.loss, reference["loss"], **CLOSE)


def check_choice(model, reference):
    inputs = choice_inputs(reference["inputs"])
    losses = {"labels": reference["ans_loss"], "region_class_labels": reference["cnn_reg_loss"]}
    for given in (inputs, pad_left(inputs)):
        outputs = model(**given)
        torch.testing.assert_close(outputs.logits, reference["logits"], **CLOSE)
        torch.testing.assert_close(outputs.loss, reference["loss"], **CLOSE)
    for name, expected in losses.items():
        given = {key: value for key, value in inputs.items() if key == name or key not in losses}
        torch.testing.assert_close(model(**given).loss, expected, **CLOSE)


def test_vqa_equals_reference():
    reference = load_fixture("vqa")
    model = build(VLBertForVisualQuestionAnswering, reference, reference["region_visual"], num_labels=VQA_ANSWERS)
    check_vqa(model, reference)


def test_referring_expressions_equal_reference():
    reference = load_fixture("refcoco")
    check_referring(build(VLBertForReferringExpression, reference, reference["region_visual"]), reference)


def test_multiple_choice_equals_reference():
    reference = load_fixture("vcr")
    visual = reference["inputs"]["obj_reps"].repeat_interleave(4, dim=0)
    model = build(VLBertForMultipleChoice, reference, visual)
    check_choice(model, reference)
    model.config.choice_loss = "softmax"
    inputs = choice_inputs(reference["inputs"])
    del inputs["region_class_labels"]
    torch.testing.assert_close(model(**inputs).loss, reference["softmax_loss"], **CLOSE)
    del inputs["token_regions"]
    assert not torch.allclose(model(**inputs).logits, reference["logits"], atol=1e-4)


@pytest.mark.parametrize("name", ["vqa_mlm", "vqa_1fc", "vqa_2fc", "refcoco", "vcr_sigmoid", "vcr_softmax"])
def test_task_modules_equal_reference_from_features_on(shared: Path, name):
    reference = torch.load(shared / "parity" / "vl_bert_core_and_tasks.pt", weights_only=True)["tasks"][name]
    task, _, form = name.partition("_")
    if task == "vqa":
        fields = {"num_labels": VQA_ANSWERS, "answer_head": form, "answer_hidden_size": 32}
        check_vqa(build(VLBertForVisualQuestionAnswering, reference, **fields), reference)
    elif task == "refcoco":
        check_referring(build(VLBertForReferringExpression, reference), reference)
    else:
        visual = reference["inputs"]["obj_reps"].repeat_interleave(4, dim=0)
        check_choice(build(VLBertForMultipleChoice, reference, visual, choice_loss=form), reference)

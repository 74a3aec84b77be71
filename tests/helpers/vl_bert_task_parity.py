# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Models and checks for comparisons with the reference of the VL-BERT task heads."""

from torch import nn
from torch.testing import assert_close

from tests.helpers.vl_bert_parity import CLOSE
from tests.helpers.vl_bert_task_reference import choice_inputs, referring_inputs, vqa_inputs

TEXT = ("input_ids", "attention_mask", "token_type_ids", "token_regions")


def pad_left(inputs):
    """Adds two padding columns before the text."""
    padded = {name: nn.functional.pad(inputs[name], (2, 0)) for name in TEXT if name in inputs}
    if "answer_positions" in inputs:
        padded["answer_positions"] = inputs["answer_positions"] + 2
    return {**inputs, **padded}


def check_vqa(model, reference):
    inputs = vqa_inputs(reference["inputs"])
    for given in (inputs, pad_left(inputs)):
        outputs = model(**given)
        assert_close(outputs.logits, reference["logits"], **CLOSE)
        assert_close(outputs.loss, reference["loss"], **CLOSE)


def check_referring(model, reference):
    inputs = referring_inputs(reference["inputs"])
    mask = inputs["region_attention_mask"]
    for given in (inputs, pad_left(inputs)):
        outputs = model(**given)
        assert_close(outputs.logits[mask], reference["logits"][mask], **CLOSE)
        assert (outputs.logits[~mask] == -10000.0).all()
        assert_close(outputs.loss, reference["loss"], **CLOSE)


def check_choice(model, reference):
    inputs = choice_inputs(reference["inputs"])
    losses = {"labels": reference["ans_loss"], "region_class_labels": reference["cnn_reg_loss"]}
    for given in (inputs, pad_left(inputs)):
        outputs = model(**given)
        assert_close(outputs.logits, reference["logits"], **CLOSE)
        assert_close(outputs.loss, reference["loss"], **CLOSE)
    for name, expected in losses.items():
        given = {key: value for key, value in inputs.items() if key == name or key not in losses}
        assert_close(model(**given).loss, expected, **CLOSE)

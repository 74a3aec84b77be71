# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VQA, RefCOCO+ and VCR equal the public task modules: logits, every loss, on any padding."""

import pytest
import torch

from grounded_attention.modeling import (
    VLBertForMultipleChoice,
    VLBertForReferringExpression,
    VLBertForVisualQuestionAnswering,
)
from tests.helpers.closeness import assert_close
from tests.helpers.vl_bert_parity import GivenVisual
from tests.helpers.vl_bert_reference import as_checkpoint, load_fixture, load_weights, make_config
from tests.helpers.vl_bert_task_parity import check_choice, check_referring, check_vqa
from tests.helpers.vl_bert_task_reference import choice_inputs

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
    assert_close(model(**inputs).loss, reference["softmax_loss"])
    del inputs["token_regions"]
    assert not torch.allclose(model(**inputs).logits, reference["logits"], atol=1e-4)


@pytest.mark.parametrize("name", ["vqa_mlm", "vqa_1fc", "vqa_2fc", "refcoco", "vcr_sigmoid", "vcr_softmax"])
def test_task_modules_equal_reference_from_features_on(shared, name):
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

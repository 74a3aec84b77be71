# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Converters of ViLBERT and LXMERT: public key lists, wrappers, configuration files, and files that are wrong."""

import pytest
import torch
from torch.testing import assert_close

from grounded_attention.conversion.fields import CheckpointError, OverrideError
from grounded_attention.conversion.lxmert import LXMERT
from grounded_attention.conversion.vilbert import VILBERT
from grounded_attention.modeling import (
    LXMERTForPreTraining,
    LXMERTForVisualQuestionAnswering,
    LXMERTForVisualReasoning,
    ViLBertForMultiTask,
    ViLBertForPreTraining,
    ViLBertForReferringExpression,
)
from tests.conversion.key_lists import read_key_list
from tests.helpers.tiny_two_streams import make_lxmert, make_vilbert

HEADS = {"num_attention_heads": 4, "v_num_attention_heads": 3, "bi_num_attention_heads": 2}
SCHEDULE = {"t_biattention_id": [0, 1], "v_biattention_id": [0, 1]}


@pytest.mark.parametrize(
    "name, class_name",
    [
        ("vilbert_pretrain_6l6c", "ViLBertForPreTraining"),
        ("vilbert_tasks_6l6c", "ViLBertForMultiTask"),
        ("vilbert_tasks_6l6c_tasktoken", "ViLBertForMultiTask"),
        ("vilbertbeta_tasks_6l6c", "ViLBertForMultiTask"),
    ],
)
def test_public_key_lists_of_vilbert(shared, name, class_name):
    conversion = VILBERT.convert_state_dict(read_key_list(shared, name))
    assert conversion.class_name == class_name
    assert set(conversion.left_out.values()) == {"never used by the public code"}
    assert len(conversion.left_out) == 24
    fields = VILBERT.read_fields(conversion, {}).values()
    wanted = {"hidden_size": 768, "v_hidden_size": 1024, "bi_hidden_size": 1024, "num_hidden_layers": 12}
    wanted |= {"v_num_hidden_layers": 6, "v_feature_size": 2048, "v_target_size": 1601}
    wanted |= {"t_biattention_id": [6, 7, 8, 9, 10, 11], "task_specific_tokens": "tasktoken" in name}
    assert wanted.items() <= fields.items()


def test_public_key_list_of_lxmert(shared):
    conversion = LXMERT.convert_state_dict(read_key_list(shared, "lxmert_pretrain"))
    assert conversion.class_name == "LXMERTForPreTraining"
    assert not conversion.left_out
    fields = LXMERT.read_fields(conversion, {}).values()
    wanted = {"l_layers": 9, "r_layers": 5, "x_layers": 5, "num_qa_labels": 9500, "num_object_labels": 1600}
    assert wanted.items() <= fields.items()
    answers = list(map(str, range(9500)))
    assert LXMERT.read_fields(conversion, {"answers": answers}).values()["qa_answers"] == answers


def original_vilbert(cls, **fields):
    """A model of ours with the names of the public code."""
    model = make_vilbert(cls, **fields)
    parts = {"dense": "0", "LayerNorm": "2", "classifier": "3"}
    weights = {}
    for name, value in model.state_dict().items():
        head, _, rest = name.partition(".")
        if head in ("vil_prediction", "vil_prediction_gqa", "vil_binary_prediction"):
            part, _, kind = rest.partition(".")
            name = f"{head}.logit_fc.{parts[part]}.{kind}"
        if "bi_seq_relationship" in name:
            value = value.flip(0)
        if name != "cls.predictions.decoder.bias":
            weights[name.replace("vilbert.", "bert.", 1)] = value
    for layer in range(len(model.config.t_biattention_id)):
        weights[f"bert.encoder.c_layer.{layer}.biOutput.q_dense1.weight"] = torch.zeros(2, 2)
    return model, weights


def original_lxmert(cls, **fields):
    model = make_lxmert(cls, **fields)
    parts = {"dense": "0", "LayerNorm": "2", "classifier": "3"}
    task = cls is not LXMERTForPreTraining
    weights = {}
    for name, value in model.state_dict().items():
        if name.startswith("reasoning_head."):
            _, part, kind = name.split(".")
            name = f"logit_fc.{parts[part]}.{kind}"
        if task:
            name = name.removeprefix("answer_head.")
        prefix = "lxrt_encoder.model.bert." if task else "bert."
        weights["module." + name.replace("lxmert.", prefix, 1)] = value
    return model, weights


@pytest.mark.parametrize("cls", [ViLBertForPreTraining, ViLBertForMultiTask])
@pytest.mark.parametrize(
    "fields", [{}, {"task_specific_tokens": True, "dynamic_attention": True}], ids=["", "options"]
)
def test_vilbert_comes_back(cls, fields):
    model, weights = original_vilbert(cls, **fields)
    found, conversion = VILBERT.build_model(weights, {**HEADS, **SCHEDULE})
    assert type(found) is cls
    assert len(conversion.left_out) == 2
    assert_close(found.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("cls", [LXMERTForPreTraining, LXMERTForVisualQuestionAnswering, LXMERTForVisualReasoning])
def test_lxmert_comes_back(cls):
    model, weights = original_lxmert(cls)
    found, _ = LXMERT.build_model(weights, {"num_attention_heads": 4})
    assert type(found) is cls
    assert_close(found.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_a_public_configuration_file_is_taken_as_it_is():
    _, weights = original_vilbert(ViLBertForPreTraining, visual_target="features")
    public = {**HEADS, **SCHEDULE, "visual_target": 1, "v_initializer_range": 0.02, "pooling_method": "mul"}
    found, _ = VILBERT.build_model(weights, {**public, "bi_intermediate_size": 9, "bi_attention_type": 1})
    assert found.config.visual_target == "features"


def test_one_head_of_all_is_taken_by_its_task(tmp_path):
    model, weights = original_vilbert(ViLBertForMultiTask)
    VILBERT.build_model(weights, {**HEADS, **SCHEDULE})[0].save_pretrained(tmp_path)
    found, info = ViLBertForReferringExpression.from_pretrained(tmp_path, output_loading_info=True)
    assert torch.equal(found.vision_logit.weight, model.vision_logit.weight)
    assert not info["missing_keys"]


@pytest.mark.parametrize(
    "given, message",
    [
        (HEADS, "t_biattention_id cannot be read from the shapes"),
        ({**HEADS, "t_biattention_id": [1], "v_biattention_id": [1]}, "2 co-attention layers, but"),
        ({**HEADS, **SCHEDULE, "visual_target": 2}, "it predicts classes"),
    ],
    ids=["schedule", "calls", "target"],
)
def test_configurations_that_vilbert_cannot_have(given, message):
    _, weights = original_vilbert(ViLBertForPreTraining)
    with pytest.raises((CheckpointError, OverrideError), match=message):
        VILBERT.build_model(weights, given)


@pytest.mark.parametrize("key", ["bert.v_pooler.dense.weight", "bert.encoder.v_layer.1.output.dense.bias"])
def test_missing_tensors_of_vilbert_are_named(key):
    _, weights = original_vilbert(ViLBertForPreTraining)
    del weights[key]
    with pytest.raises(CheckpointError, match=f"vil{key}"):
        VILBERT.build_model(weights, {**HEADS, **SCHEDULE})


def test_a_tensor_that_vilbert_does_not_have_is_refused():
    _, weights = original_vilbert(ViLBertForPreTraining)
    with pytest.raises(CheckpointError, match=r"bert\.extra\.weight"):
        VILBERT.build_model({**weights, "bert.extra.weight": torch.zeros(1)}, {**HEADS, **SCHEDULE})


@pytest.mark.parametrize("key", ["pooler.dense.weight", "encoder.visn_fc.box_fc.bias"])
def test_missing_tensors_of_lxmert_are_named(key):
    _, weights = original_lxmert(LXMERTForPreTraining)
    del weights[f"module.bert.{key}"]
    with pytest.raises(CheckpointError, match=f"lxmert.{key}"):
        LXMERT.build_model(weights, {"num_attention_heads": 4})

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The pooled state of LXMERT and VisualBERT with the first region: its numbers, what it trains, how it starts."""

import pytest
import torch
from torch.testing import assert_close
from transformers import BertConfig, BertForPreTraining

from grounded_attention.families import FAMILIES
from grounded_attention.modeling import LXMERTModel, ViLBertModel, VisualBERTModel
from tests.helpers.tiny_two_streams import make_lxmert, make_vilbert
from tests.helpers.tiny_visualbert import make_model

FUSED = {"pooler_size": 10, "pooler_act": "relu"}
FAMILY = {"lxmert": (LXMERTModel, make_lxmert, 16), "visualbert": (VisualBERTModel, make_model, 10)}
HEADS = ["multiple_choice", "visual_reasoning", "vqa", "vgp", "referring_expressions", "phrase_grounding"]
families = pytest.mark.parametrize("family", FAMILY)


def make_inputs(width, choices=0):
    torch.manual_seed(1)
    words = torch.randint(1, 40, (2, choices, 6) if choices else (2, 6))
    return {
        "input_ids": words,
        "region_features": torch.randn(2, 4, width),
        "region_boxes": torch.rand(2, 4, 2, 2).sort(dim=2).values.flatten(2),
    }


@families
@pytest.mark.parametrize("method", ["mul", "sum", "text"])
def test_the_pooled_state_by_hand(family, method):
    cls, make, width = FAMILY[family]
    model = make(cls, **FUSED, fusion_method=method)
    inputs = make_inputs(width)
    outputs = model(**inputs)
    expected = model.pooler.dense(outputs.text_hidden_state[:, 0]).relu()
    if method == "text":
        assert model.region_pooler is None
    else:
        region = model.region_pooler.dense(outputs.region_hidden_state[:, 0]).relu()
        expected = expected * region if method == "mul" else expected + region
    assert outputs.pooler_output.shape == (2, model.config.pooled_hidden_size) == (2, 10)
    assert_close(outputs.pooler_output, expected)


@families
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("fields", [{}, {"identification_pooling": "cls"}], ids=["pooled", "cls"])
def test_what_a_task_reads_is_trained_and_nothing_else(family, head, fields):
    """Every trainable parameter of the encoder has a gradient from some score, and every frozen one has none."""
    _, make, width = FAMILY[family]
    cls = FAMILIES[family].heads[head]
    options = {**FUSED, **fields, "fusion_method": "mul", "num_labels": 2}
    inputs = make_inputs(width, choices=3 if head == "multiple_choice" else 0)
    if head == "visual_reasoning":
        inputs["region_token_type_ids"] = torch.tensor([[0, 0, 1, 1]] * 2)
    if head in ("vgp", "phrase_grounding"):
        inputs["phrase_mask"] = torch.ones(2, 2, 6, dtype=torch.bool)
    if head == "vgp":
        inputs["phrase_pairs"] = torch.tensor([[[0, 1]]] * 2)
    if head == "phrase_grounding":
        inputs["phrase_regions"] = torch.ones(2, 2, 4, dtype=torch.bool)
    model = make(cls, **options)
    outputs = model(**inputs)
    total = 0.0
    for name, scores in outputs.items():
        if "logits" in name and scores is not None:
            total += (scores.clamp(min=-100) ** 2).sum()
    total.backward()
    last = "x_layers.1.visn_output" if family == "lxmert" else "encoder.layer.1.output"
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and ("pooler" in name or last in name):
            assert parameter.grad is not None, name
    poolers = [name for name, parameter in model.named_parameters() if "pooler" in name and parameter.requires_grad]
    reads_pooled = head in ("multiple_choice", "visual_reasoning") or (head, family) == ("vqa", "lxmert")
    reads_pooled |= head == "vgp" and not fields
    assert bool(poolers) is reads_pooled
    if family == "lxmert":
        trained = model.base_model.encoder.x_layers[-1].visn_output.dense.weight.requires_grad
        assert trained is (reads_pooled or head in ("referring_expressions", "phrase_grounding"))


def test_a_text_without_regions_is_pooled_alone():
    model = make_model(VisualBERTModel, **FUSED, fusion_method="mul")
    words = make_inputs(10)["input_ids"]
    outputs = model(words)
    assert_close(outputs.pooler_output, model.pooler(outputs.text_hidden_state[:, 0]))


def test_an_image_of_two_has_its_own_whole_image_where_the_pooled_state_reads_it():
    cls = FAMILIES["lxmert"].heads["visual_reasoning"]
    assert make_lxmert(cls, fusion_method="mul")._whole_image
    assert not make_lxmert(cls)._whole_image


@pytest.mark.parametrize(
    "fields, same",
    [({}, True), ({"pooler_act": "relu"}, False), ({"pooler_size": 10}, False), ({"fusion_method": "sum"}, False)],
    ids=["bert", "relu", "width", "fused"],
)
def test_a_pooler_of_another_kind_does_not_start_from_bert(tmp_path, fields, same):
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 36}
    bert = BertForPreTraining(BertConfig(vocab_size=40, max_position_embeddings=20, **sizes))
    bert.save_pretrained(tmp_path)
    model = VisualBERTModel.from_bert(str(tmp_path), visual_embedding_dim=10, **fields)
    assert torch.equal(model.embeddings.word_embeddings.weight, bert.bert.embeddings.word_embeddings.weight)
    weight = model.pooler.dense.weight
    theirs = bert.bert.pooler.dense.weight
    assert (weight.shape == theirs.shape and torch.equal(weight, theirs)) is same


def test_the_poolers_of_vilbert_have_a_width_of_their_own():
    outputs = make_vilbert(ViLBertModel, pooler_size=7)(**make_inputs(16))
    assert outputs.pooler_output.shape == (2, 7)
    assert_close(outputs.pooler_output, outputs.text_pooler_output * outputs.region_pooler_output)

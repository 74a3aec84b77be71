# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The weights that a new VL-BERT starts with, and those that it takes from BERT."""

import pytest
import torch
from torch import nn
from transformers import BertForPreTraining, BertModel

from grounded_attention.modeling import VLBertForPreTraining, VLBertForVGP, VLBertModel
from tests.helpers.closeness import assert_close
from tests.helpers.tiny_vl_bert import D, F, R, make_bert, make_model, tiny_config


def test_visual_scales_and_masks_start_as_configured():
    model = VLBertForPreTraining(tiny_config(visual_scale_text_init=0.0, visual_scale_region_init=0.25))
    embeddings = model.vl_bert.embeddings
    assert embeddings.text_visual.norm.weight.eq(0.0).all()
    assert embeddings.region_visual.norm.weight.eq(0.25).all()
    assert embeddings.LayerNorm.weight.eq(1.0).all()
    assert model.region_mask_embedding.weight.eq(0.0).all()
    assert model.masked_region_embedding.weight.std() > 0.1
    scalar = VLBertModel(tiny_config(visual_norm=False, visual_scale_text_init=0.0)).embeddings.text_visual.norm
    assert scalar.weight.item() == 0.0


@pytest.mark.parametrize("cls", [VLBertModel, VLBertForVGP])
def test_from_bert_is_bert_on_text(tmp_path, cls):
    """The embeddings of text are BERT's (visual scales 0), and so are encoder and pooler."""
    bert = make_bert(BertModel, tmp_path)
    model = cls.from_bert(str(tmp_path), region_feature_size=F, coordinate_dim=3).eval()
    base = getattr(model, "vl_bert", model)
    ids = torch.randint(1, 31, (2, 6))
    types = torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)
    features = torch.rand(2, R, F)
    boxes = torch.rand(2, R, 4)
    outputs = base(ids, token_type_ids=types, region_features=features, region_boxes=boxes, output_hidden_states=True)
    expected = bert(ids, token_type_ids=types, output_hidden_states=True)
    assert_close(outputs.hidden_states[0][:, :6], expected.hidden_states[0])
    states = base.encoder(expected.hidden_states[0])
    assert_close(states, expected.last_hidden_state)
    assert_close(base.pooler(states), expected.pooler_output)
    assert base.embeddings.token_type_embeddings.weight[2].abs().sum() > 0


def test_from_bert_takes_the_word_head(tmp_path):
    bert = make_bert(BertForPreTraining, tmp_path)
    nn.init.normal_(bert.cls.predictions.bias)
    bert.save_pretrained(tmp_path)
    model = VLBertForPreTraining.from_bert(str(tmp_path), region_feature_size=F, relationship_head=True)
    states = torch.randn(2, D)
    assert_close(model.mlm_head(states), bert.cls.predictions(states))
    # BERT's class 0 is "follows", ours "does not belong".
    expected = bert.cls.seq_relationship(states)[:, [1, 0]]
    assert_close(model.relationship_head(states), expected)
    assert model.mlm_head.decoder.weight is model.get_input_embeddings().weight


def save_as(folder, bert, rename, inside=None):
    """Saves the weights of a BERT as a training loop does, under other names."""
    weights = {rename(key): value for key, value in bert.state_dict().items()}
    (folder / "model.safetensors").unlink()
    torch.save({inside: weights, "epoch": 1} if inside else weights, folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    "first, inside",
    [
        ("", ""),
        ("module.", "_checkpoint_wrapped_module."),
        ("model._orig_mod.", "module._orig_mod."),
        ("_fsdp_wrapped_module.module.module.", ""),
        ("", "module._orig_mod."),
    ],
)
def test_from_bert_takes_weights_that_a_training_loop_named(tmp_path, first, inside):
    bert = make_bert(BertForPreTraining, tmp_path)
    torch.manual_seed(1)
    expected = VLBertForPreTraining.from_bert(str(tmp_path), region_feature_size=F).state_dict()
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    save_as(tmp_path, bert, lambda key: first + replace(key, {**old, "layer.0.": f"layer.0.{inside}"}))
    torch.manual_seed(1)
    found = VLBertForPreTraining.from_bert(str(tmp_path), region_feature_size=F).state_dict()
    assert_close(found, expected, rtol=0, atol=0)


def replace(key, pairs):
    for old, new in pairs.items():
        key = key.replace(old, new)
    return key


@pytest.mark.parametrize(
    "rename, inside, message",
    [
        (lambda key: f"foo.{key}", None, r"has no bert\.embeddings.* foo\.bert"),
        (lambda key: key.replace("layer.1.", "layer.7."), None, r"has no bert\.encoder\.layer\.1\."),
        (lambda key: key, "model", "has no (state dict|.*but epoch, model)"),
    ],
)
def test_from_bert_refuses_a_file_that_lacks_its_weights(tmp_path, rename, inside, message):
    save_as(tmp_path, make_bert(BertForPreTraining, tmp_path), rename, inside)
    with pytest.raises(ValueError, match=message):
        VLBertForPreTraining.from_bert(str(tmp_path), region_feature_size=F)


def test_from_bert_refuses_another_family(tmp_path):
    make_model().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="family 'vl_bert'; expected 'bert'"):
        VLBertModel.from_bert(str(tmp_path))


@pytest.mark.parametrize(
    "overrides, message",
    [
        ({"hidden_size": 48}, "hidden_size=48 contradicts the weights of .*, where it is 24"),
        ({"num_hidden_layers": 3}, "num_hidden_layers=3 contradicts"),
        ({"region_feature_sizes": 3}, "VLBertConfig has no field region_feature_sizes"),
    ],
)
def test_from_bert_refuses_what_bert_decides(tmp_path, overrides, message):
    make_bert(BertModel, tmp_path)
    with pytest.raises(ValueError, match=message):
        VLBertModel.from_bert(str(tmp_path), **overrides)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Small models of the families with two streams, with other widths of text, regions and co-attention."""

import torch

from grounded_attention.modeling import LXMERTConfig, ViLBertConfig

VILBERT = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 36,
    "max_position_embeddings": 20,
    "v_feature_size": 16,
    "v_target_size": 6,
    "v_hidden_size": 18,
    "v_num_hidden_layers": 2,
    "v_num_attention_heads": 3,
    "v_intermediate_size": 28,
    "bi_hidden_size": 20,
    "bi_num_attention_heads": 2,
    "num_gqa_labels": 4,
}
LXMERT = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_attention_heads": 4,
    "intermediate_size": 36,
    "max_position_embeddings": 20,
    "l_layers": 2,
    "r_layers": 1,
    "x_layers": 2,
    "visual_feat_dim": 16,
    "num_object_labels": 6,
    "num_attr_labels": 5,
    "num_qa_labels": 7,
}
# What the model of a tiny recipe needs beside its own sizes.
RECIPE_SIZES = {
    "vilbert": dict.fromkeys(("v_hidden_size", "v_intermediate_size", "bi_hidden_size"), 16)
    | {"v_num_hidden_layers": 1, "v_num_attention_heads": 2, "bi_num_attention_heads": 2},
    "lxmert": {"num_hidden_layers": 1, "r_layers": 1, "x_layers": 1, "visual_attr_loss": False},
}


def _make(cls, config, back_end):
    torch.manual_seed(0)
    model = cls._from_config(config, attn_implementation=back_end)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.2)
    return model.eval()


def make_vilbert(cls, back_end="sdpa", **fields):
    """A small ViLBERT of a class, with random weights and biases."""
    return _make(cls, ViLBertConfig(**{**VILBERT, **fields}), back_end)


def make_lxmert(cls, back_end="sdpa", **fields):
    """A small LXMERT of a class, with random weights and biases."""
    return _make(cls, LXMERTConfig(**{**LXMERT, **fields}), back_end)

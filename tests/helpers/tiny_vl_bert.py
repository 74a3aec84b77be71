# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A tiny VL-BERT and its inputs."""

import torch
from transformers import BertConfig

from grounded_attention.modeling import VLBertConfig, VLBertModel

B = 3
T = 7
R = 4
P = 5
K = 3
F = 10
D = 24


def tiny_config(**overrides):
    fields = {
        "vocab_size": 40,
        "hidden_size": D,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 36,
        "max_position_embeddings": 20,
        "region_feature_size": F,
        "coordinate_dim": 3,
        "region_classes": 6,
        "visual_scale_text_init": 0.5,
        "visual_scale_region_init": 0.5,
        "initializer_range": 0.2,
    }
    return VLBertConfig(**{**fields, **overrides})


def make_model(cls=VLBertModel, **overrides):
    torch.manual_seed(0)
    return cls(tiny_config(**overrides)).eval()


def make_inputs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(B, R, 2, 2, generator=generator).sort(dim=2).values
    text_mask = torch.ones(B, T, dtype=torch.long)
    text_mask[1, 5:] = 0
    text_mask[2, 3:] = 0
    region_mask = torch.ones(B, R, dtype=torch.long)
    region_mask[0, 2:] = 0
    return {
        "input_ids": torch.randint(1, 40, (B, T), generator=generator),
        "attention_mask": text_mask,
        "token_type_ids": torch.zeros(B, T, dtype=torch.long),
        "region_features": torch.rand(B, R, F, generator=generator),
        "region_boxes": corners.flatten(2),
        "region_attention_mask": region_mask,
    }


def make_bert(cls, directory):
    config = BertConfig(
        vocab_size=31,
        hidden_size=D,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=36,
        max_position_embeddings=20,
        initializer_range=0.2,
    )
    torch.manual_seed(1)
    bert = cls(config).eval()
    bert.save_pretrained(directory)
    return bert

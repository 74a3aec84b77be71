# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A tiny VisualBERT and its inputs."""

import torch

from grounded_attention.modeling import VisualBERTConfig, VisualBERTModel
from tests.helpers import tiny_vl_bert
from tests.helpers.tiny_vl_bert import B, D, F, R, T

P = 2
H = 2
A = 2
make_inputs = tiny_vl_bert.make_inputs
ANSWERS = ["yes", "no", "red"]
SIZES = {
    "vocab_size": 40,
    "hidden_size": D,
    "num_hidden_layers": 2,
    "num_attention_heads": H,
    "intermediate_size": 36,
    "max_position_embeddings": 20,
}


def make_model(cls=VisualBERTModel, **overrides):
    torch.manual_seed(0)
    fields = {**SIZES, "visual_embedding_dim": F, "initializer_range": 0.2}
    return cls(VisualBERTConfig(**{**fields, **overrides})).eval()


def make_grounding():
    """Makes phrases and their pairs: one phrase has two tokens, one has no region, one is padding."""
    mask = torch.zeros(B, P, T, dtype=torch.bool)
    regions = torch.zeros(B, P, R, dtype=torch.bool)
    mask[0, 0, 1:3] = True
    mask[0, 1, 4] = True
    mask[1, 0, 2] = True
    regions[0, 0, 1] = True
    regions[1, 0, [0, 3]] = True
    return mask, regions, torch.tensor([[[0, 1], [1, 0]], [[0, 0], [-1, -1]], [[-1, -1], [-1, -1]]])

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A tiny VisualBERT and its inputs."""

import torch

from grounded_attention.modeling import VisualBERTConfig, VisualBERTModel

B = 3
T = 7
R = 4
P = 2
K = 2
F = 10
D = 24
H = 2
A = 2
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


def make_inputs():
    generator = torch.Generator().manual_seed(0)
    text_mask = torch.ones(B, T, dtype=torch.long)
    region_mask = torch.ones(B, R, dtype=torch.long)
    text_mask[1, 5:] = 0
    text_mask[2, 3:] = 0
    region_mask[0, 2:] = 0
    return {
        "input_ids": torch.randint(1, 40, (B, T), generator=generator),
        "attention_mask": text_mask,
        "token_type_ids": torch.zeros(B, T, dtype=torch.long),
        "region_features": torch.rand(B, R, F, generator=generator),
        "region_boxes": torch.rand(B, R, 2, 2, generator=generator).sort(dim=2).values.flatten(2),
        "region_attention_mask": region_mask,
    }


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

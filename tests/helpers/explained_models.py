# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tiny models that read regions, their inputs, and what they decide."""

import torch

from grounded_attention.analysis.relevancy import ReadOut
from grounded_attention.modeling import (
    LXMERTForVisualQuestionAnswering,
    ViLBertForVisualQuestionAnswering,
    VisualBERTForVGP,
)
from tests.helpers.tiny_two_streams import make_lxmert, make_vilbert
from tests.helpers.tiny_vgp import FEATURE_SIZE, tiny_model
from tests.helpers.tiny_visualbert import make_model as make_visualbert

ANSWERS = ["yes", "no", "red"]


def lively(**config):
    """A tiny VL-BERT with weights so large that attention is uneven and gradients are not lost in rounding."""
    return tiny_model(initializer_range=0.4, **config).eval()


def tiny_inputs(seed=0, batch=3):
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(5, 20, (batch, 5), generator=generator)
    features = torch.randn(batch, 4, FEATURE_SIZE, generator=generator)
    corners = torch.rand(batch, 4, 2, generator=generator) / 2
    mask = torch.ones(batch, 4, dtype=torch.long)
    mask[0, 3] = 0
    return {
        "input_ids": words,
        "attention_mask": torch.ones_like(words),
        "token_type_ids": torch.zeros_like(words),
        "region_features": features,
        "region_boxes": torch.cat([corners, corners + 0.4], -1),
        "region_attention_mask": mask,
    }


def first_words(score):
    return ReadOut(score, torch.zeros(len(score), dtype=torch.long))


def identified(outputs, inputs):
    return first_words(outputs.identification_logits.max(-1).values)


def lxmert():
    return make_lxmert(LXMERTForVisualQuestionAnswering, visual_feat_dim=FEATURE_SIZE, answers=ANSWERS)


def visualbert():
    return make_visualbert(VisualBERTForVGP, visual_embedding_dim=FEATURE_SIZE)


def vilbert():
    return make_vilbert(ViLBertForVisualQuestionAnswering, v_feature_size=FEATURE_SIZE, answers=ANSWERS)


def answered(outputs, inputs):
    return first_words(outputs.logits.max(-1).values)

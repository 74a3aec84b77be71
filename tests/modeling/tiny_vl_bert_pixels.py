# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A tiny VL-BERT that reads pixels, and its inputs."""

import torch

from grounded_attention.modeling import FastRCNNConfig, VLBertModel
from tests.helpers.tiny_vl_bert import make_inputs as make_feature_inputs
from tests.helpers.tiny_vl_bert import make_model

HEIGHT = 48
WIDTH = 64
F = 16
VISION = {"embedding_size": 4, "hidden_sizes": [8, 8, 12, F], "depths": [1, 1, 1, 1], "roi_size": 3}


def make_pixel_model(cls=VLBertModel, **overrides):
    fields = {"region_feature_size": F, "vision_config": FastRCNNConfig(**VISION)}
    return make_model(cls, **{**fields, **overrides})


def make_inputs():
    """Makes inputs with three images on one canvas; the first row has two regions, the last has text only."""
    inputs = make_feature_inputs()
    del inputs["region_features"]
    inputs["region_attention_mask"][2] = 0
    generator = torch.Generator().manual_seed(1)
    inputs["image_sizes"] = torch.tensor([[64, 40], [50, 48], [0, 0]])
    inputs["pixel_values"] = torch.zeros(3, 3, HEIGHT, WIDTH)
    for image, (width, height) in zip(inputs["pixel_values"], inputs["image_sizes"].tolist(), strict=True):
        image[:, :height, :width] = 60 * torch.randn(3, height, width, generator=generator)
    return inputs


def as_features(model, inputs):
    """The inputs with the features of their regions in place of the pixels."""
    base = getattr(model, "vl_bert", model)
    inputs = dict(inputs)
    boxes = inputs["region_boxes"] * inputs.pop("image_sizes").repeat(1, 2)[:, None]
    outputs = base.vision_model(inputs.pop("pixel_values"), boxes, inputs["region_attention_mask"])
    return {**inputs, "region_features": outputs.region_features}

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


def compute_features(vision_model, inputs, row):
    """Computes the features of the regions of a row from an image without padding."""
    width, height = inputs["image_sizes"][row].tolist()
    count = int(inputs["region_attention_mask"][row].sum())
    boxes = inputs["region_boxes"][row, :count] * torch.tensor([width, height, width, height])
    return vision_model(inputs["pixel_values"][row : row + 1], boxes[None]).region_features[0]


def as_features(model, inputs):
    """Replaces pixels by region features in the inputs."""
    base = getattr(model, "vl_bert", model)
    features = torch.zeros(*inputs["region_boxes"].shape[:2], F)
    for row in range(2):
        own = compute_features(base.vision_model, inputs, row)
        features[row, : len(own)] = own
    rest = {name: value for name, value in inputs.items() if name not in ("pixel_values", "image_sizes")}
    return {**rest, "region_features": features}

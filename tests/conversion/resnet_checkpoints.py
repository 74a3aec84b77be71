# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Original checkpoints of the region-feature network, tiny."""

import torch

from tests.helpers.vl_bert_parity import image_weight
from tests.helpers.vl_bert_reference import list_shapes

IMAGE = "image_feature_extractor."
WIDTHS = (4, 8, 8, 12, 16)
DEPTHS = (1, 2, 1, 2)


def list_image_shapes(**sizes):
    """Keys of the pixel network in an end-to-end checkpoint."""
    shapes = list_shapes(end_to_end=True, **sizes)
    names = ("backbone.", "roi_head_feature_extractor.", "head.0.")
    return {key: shape for key, shape in shapes.items() if key.startswith(tuple(IMAGE + name for name in names))}


def make_resnet_checkpoint():
    """A tiny file with the keys of resnet101-pt-vgbua-0000.model."""
    weights = {}
    for key, shape in list_image_shapes(widths=WIDTHS, depths=DEPTHS).items():
        if not key.startswith(IMAGE + "head.0."):
            key = key.removeprefix(IMAGE + "backbone.").replace(IMAGE + "roi_head_feature_extractor.", "layer4.")
            weights[key] = image_weight(key, shape)
    return {**weights, "fc.weight": torch.randn(10, 16), "fc.bias": torch.randn(10)}


def reference_weights(reference):
    """The weights that the reference of parity was made with; both names of the last stage have the same."""
    weights = {}
    for key, shape in reference["keys"].items():
        first_name = key
        if key.startswith("head.0."):
            first_name = "roi_head_feature_extractor." + key.removeprefix("head.0.")
        weights[f"module.{IMAGE}{key}"] = image_weight(first_name, shape)
    return weights

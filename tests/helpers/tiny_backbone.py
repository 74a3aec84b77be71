# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Saves a tiny backbone for features."""

from transformers import ResNetConfig, ResNetModel
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil


def save_backbone(folder):
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 8, 8, 12], depths=[1, 1, 1, 1], layer_type="basic")
    ResNetModel(config).eval().save_pretrained(folder)
    ViTImageProcessorPil(size={"height": 64, "width": 64}).save_pretrained(folder)
    return str(folder)

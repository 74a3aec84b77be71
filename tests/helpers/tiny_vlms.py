# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tiny decoder models for images and text, with random weights, and their inputs: two rows of an image and words."""

import torch
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

IMAGE, PATCHES = 50, 4  # the image token, and the number of them per image after 2 x 2 merging
TOKENS = {"image_token_id": IMAGE, "video_token_id": 51, "vision_start_token_id": 52, "vision_end_token_id": 53}
IMAGE_POSITIONS, WORD_POSITIONS = (2, 3, 4, 5), (7, 8, 9, 10, 11)

_TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 60,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,
    "rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0},
}
_VISION = {
    "depth": 2,
    "hidden_size": 32,
    "num_heads": 4,
    "intermediate_size": 48,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 32,
}


def qwen2_5_vl() -> Qwen2_5_VLForConditionalGeneration:
    torch.manual_seed(0)
    vision = {**_VISION, "window_size": 16, "fullatt_block_indexes": [1]}
    config = Qwen2_5_VLConfig(text_config=dict(_TEXT), vision_config=vision, **TOKENS)
    return Qwen2_5_VLForConditionalGeneration(config).eval()


def qwen3_vl() -> Qwen3VLForConditionalGeneration:
    torch.manual_seed(0)
    vision = {**_VISION, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}
    config = Qwen3VLConfig(text_config=dict(_TEXT), vision_config=vision, **TOKENS)
    return Qwen3VLForConditionalGeneration(config).eval()


def qwen_inputs() -> dict[str, torch.Tensor]:
    """Makes two rows with one image of 4 x 4 patches each; the second row ends with two padded words."""
    rows = 2
    ids = torch.tensor([[1, 52, *[IMAGE] * PATCHES, 53, 5, 6, 7, 8, 9]] * rows)
    mask = torch.ones_like(ids)
    mask[1, -2:] = 0
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "pixel_values": torch.randn(16 * rows, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(4)),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * rows),
        "mm_token_type_ids": (ids == IMAGE).int(),
    }

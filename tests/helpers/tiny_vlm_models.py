# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Vision-language models with random weights, whose sizes fit the processors of `tiny_vlm_processors`."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from tests.helpers.tiny_vlm_processors import MANY_PINPOINTS, PATCH, PINPOINTS, TILE, make_processor

_TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 1300,  # PaliGemma's processor adds more than a thousand tokens
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "initializer_range": 0.2,
}
_MROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}}
_VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": TILE,
    "patch_size": PATCH,
    "initializer_range": 0.2,
}
_QWEN_VISION = {
    "depth": 2,
    "num_heads": 4,
    "hidden_size": 32,
    "embed_dim": 32,
    "intermediate_size": 48,
    "patch_size": PATCH,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}


def _config(model_type: str) -> dict[str, Any]:
    """The parts of the configuration that the families do not share."""
    if model_type.startswith("qwen"):
        own = {
            "qwen2_vl": {"hidden_size": 32, "mlp_ratio": 2},
            "qwen2_5_vl": {"out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [1]},
            "qwen3_vl": {"out_hidden_size": 32, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
        }
        return {"text_config": {**_TEXT, **_MROPE}, "vision_config": {**_QWEN_VISION, **own[model_type]}}
    return {
        "llava": {"text_config": {**_TEXT, "model_type": "llama"}, "vision_config": _clip(24)},
        "llava_next": {
            "text_config": {**_TEXT, "model_type": "llama"},
            "vision_config": _clip(TILE),
            "image_grid_pinpoints": PINPOINTS,
        },
        "llava_onevision": {
            "text_config": {**_TEXT, "model_type": "qwen2"},
            "vision_config": {**_VISION, "model_type": "siglip_vision_model", "vision_use_head": False},
            "image_grid_pinpoints": MANY_PINPOINTS,
            "vision_aspect_ratio": "anyres_max_4",
        },
        "idefics3": {"text_config": {**_TEXT, "model_type": "llama"}, "vision_config": _VISION, "scale_factor": 2},
        "smolvlm": {"text_config": {**_TEXT, "model_type": "llama"}, "vision_config": _VISION, "scale_factor": 2},
        "paligemma": {
            "text_config": {**_TEXT, "model_type": "gemma"},
            "vision_config": {**_VISION, "model_type": "siglip_vision_model", "vision_use_head": False},
            "projection_dim": 32,
            "hidden_size": 32,
        },
        "gemma3": {
            "text_config": {**_TEXT, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4096},
            "vision_config": {**_VISION, "model_type": "siglip_vision_model", "vision_use_head": False},
            "mm_tokens_per_image": 4,
        },
        "internvl": {
            "text_config": {**_TEXT, "model_type": "qwen2"},
            "vision_config": {**_VISION, "image_size": [TILE, TILE], "patch_size": [PATCH, PATCH]},
            "image_seq_length": 4,
        },
    }[model_type]


def _clip(image_size: int) -> dict[str, Any]:
    return {**_VISION, "model_type": "clip_vision_model", "image_size": image_size, "projection_dim": 32}


def make_model(model_type: str, tokenizer: Any) -> PreTrainedModel:
    """Makes the model for a key of `PROCESSORS`, whose special tokens are those of the tokenizer."""
    torch.manual_seed(0)
    model_type = model_type.removesuffix("_padded")
    tokens = {
        f"{name}_{end}": getattr(tokenizer, f"{name}_token_id")
        for name in ("image", "video", "vision_start", "vision_end", "boi", "eoi")
        for end in ("token_id", "token_index")
    }
    config = AutoConfig.for_model(model_type, **tokens, **_config(model_type), pad_token_id=0)
    model = AutoModelForImageTextToText.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("mm_input_projection_weight"):  # Gemma 3 starts with zeros
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def unmix_patches(model: PreTrainedModel) -> None:
    """Makes the attention of the vision tower add nothing, so that every patch is embedded by itself."""
    found = 0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            vision = any(part in name for part in ("vision_tower", "vision_model", "visual"))
            if vision and any(part in name for part in (".out_proj.", ".attn.proj.", ".projection_layer.")):
                parameter.zero_()
                found += 1
    assert found >= 2, "the vision tower has no output projection of this name"


def make_pair(model_type: str) -> tuple[PreTrainedModel, Any]:
    """A model and the processor that it fits."""
    processor = make_processor(model_type)
    return make_model(model_type, processor.tokenizer), processor

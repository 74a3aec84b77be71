# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Vision-language models with random weights, whose sizes fit the processors of `tiny_vlm_processors`."""

import copy
from types import SimpleNamespace

import torch
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.modeling_outputs import MoeCausalLMOutputWithPast
from transformers.models.timm_wrapper import modeling_timm_wrapper

from grounded_attention.supervision.supervise import find_language_model
from tests.helpers.tiny_vlm_processors import MANY_PINPOINTS, make_processor, type_of
from tests.helpers.tiny_vlm_relatives import (
    CLIP,
    LLAMA,
    MROPE,
    PATCH,
    PINPOINTS,
    QWEN_VISION,
    RELATIVES,
    SIDE,
    SIGLIP,
    TEXT,
    TILE,
    VISION,
    WINDOW,
)

_QWEN_VISION = {
    name: value for name, value in QWEN_VISION.items() if name not in ("out_hidden_size", "initializer_range")
}


def _config(model_type):
    """The parts of the configuration that the families do not share."""
    if model_type in RELATIVES:
        return RELATIVES[model_type].config
    if model_type.startswith("qwen"):
        own = {
            "qwen2_vl": {"hidden_size": 32, "mlp_ratio": 2},
            "qwen2_5_vl": {"out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [1]},
            "qwen3_vl": {"out_hidden_size": 32, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
        }
        return {"text_config": {**TEXT, **MROPE}, "vision_config": {**_QWEN_VISION, **own[model_type]}}
    smol = {"text_config": LLAMA, "vision_config": VISION, "scale_factor": 2}
    return {
        "llava": {"text_config": LLAMA, "vision_config": {**CLIP, "image_size": SIDE}},
        "llava_next": {"text_config": LLAMA, "vision_config": CLIP, "image_grid_pinpoints": PINPOINTS},
        "llava_onevision": {
            "text_config": {**TEXT, "model_type": "qwen2"},
            "vision_config": SIGLIP,
            "image_grid_pinpoints": MANY_PINPOINTS,
            "vision_aspect_ratio": "anyres_max_4",
        },
        "idefics3": smol,
        "smolvlm": smol,
        "paligemma": {
            "text_config": {**TEXT, "model_type": "gemma"},
            "vision_config": SIGLIP,
            "projection_dim": 32,
            "hidden_size": 32,
        },
        "gemma3": {"text_config": {**TEXT, **WINDOW}, "vision_config": SIGLIP, "mm_tokens_per_image": 4},
        "internvl": {
            "text_config": {**TEXT, "model_type": "qwen2"},
            "vision_config": {**VISION, "image_size": [TILE, TILE], "patch_size": [PATCH, PATCH]},
            "image_seq_length": 4,
        },
    }[model_type]


class TimmTower(torch.nn.Module):
    """As a model of timm, which is not installed: a convolution with patches as strides, wider than a patch."""

    def __init__(self, embed_dim, patch_size, class_token=False):
        super().__init__()
        self.class_token = class_token
        self.conv = torch.nn.Conv2d(3, embed_dim, patch_size + 2, patch_size, padding=1)

    def forward_features(self, pixels):
        """Maps of channels, (B, D, H, W), or a class token and the patches, (B, 1 + N, D)."""
        maps = self.conv(pixels)
        tokens = maps.flatten(2).transpose(1, 2)
        if self.class_token:
            return torch.cat([tokens.mean(1, keepdim=True), tokens], dim=1)
        return maps


modeling_timm_wrapper.timm = SimpleNamespace(
    create_model=lambda name, pretrained, num_classes, **sizes: TimmTower(**sizes)
)
modeling_timm_wrapper.requires_backends = lambda *names: None


def make_model(model_type, tokenizer):
    """Makes the model for a key of `PROCESSORS`, whose special tokens are those of the tokenizer."""
    torch.manual_seed(0)
    key = model_type if model_type in RELATIVES else type_of(model_type)
    model_type = type_of(model_type)
    names = ("video", "image", "vision_start", "vision_end", "boi", "eoi", "image_start", "image_end")
    names = (*names, "video_start", "video_end", "audio", "audio_start", "audio_end", "boa", "eoa")
    ids = {name: getattr(tokenizer, f"{name}_token_id", None) for name in names}
    if key in RELATIVES:
        ids["image"] = tokenizer.convert_tokens_to_ids(RELATIVES[key].image_token)
    if key.startswith("gemma4"):
        ids["video"] = tokenizer.convert_tokens_to_ids("<|video|>")
    tokens = {f"{name}_{end}": ids[name] for name in names for end in ("token_id", "token_index")}
    tokens = {name: value for name, value in tokens.items() if value is not None}
    config = AutoConfig.for_model(model_type, **{**tokens, **copy.deepcopy(_config(key)), "pad_token_id": 0})
    model = AutoModelForImageTextToText.from_config(config).eval()
    if model_type == "llama4":  # of transformers 5.24.0 reads a field that the output of its words lacks
        MoeCausalLMOutputWithPast.image_outputs = None
    for name, parameter in model.named_parameters():
        if name.endswith("mm_input_projection_weight"):  # Gemma 3 starts with zeros
            torch.nn.init.normal_(parameter, std=0.2)
        if "cross_attn" in name and name.endswith("gate"):  # Mllama too
            torch.nn.init.ones_(parameter)
    return model


def image_maps(outputs, model, inputs):
    """The eager maps (B, H, N, M) of the layers that read the image; 0 of words that see none."""
    if getattr(outputs, "cross_attentions", None):
        return [*outputs.cross_attentions]
    crossing = getattr(model.config.get_text_config(), "cross_attention_layers", None)
    if crossing is None:
        return [layer for layer in outputs.attentions if torch.is_tensor(layer)]
    seeing = inputs["cross_attention_mask"].flatten(2).any(-1)[:, None, :, None]
    return [outputs.attentions[layer] * seeing for layer in crossing]


def _mixes(part):
    name = type(part).__name__
    return any(each in name for each in ("Attention", "AttnBlock", "ShortConv")) and "Audio" not in name


def unmix_patches(model):
    """Makes the attention of the vision tower add nothing, and its convolutions see their own cell of the grid.

    Every patch is then embedded by itself.
    """
    language = {*find_language_model(model).modules()}  # all of Chameleon
    # Molmo gathers the patches of a token by attention.
    parts = [(name, part) for name, part in model.named_modules() if not name.endswith("image_pooling_2d")]
    vision = [part for name, part in parts if part not in language or "vqmodel" in name]
    towers = [part for part in vision if _mixes(part)]
    found = 0
    with torch.no_grad():
        for part in vision:
            if type(part).__name__.endswith("VectorQuantizer"):  # codes so dense that a changed patch has another one
                codebook = part.embedding.weight
                spread = torch.linspace(-3, 3, len(codebook))
                if isinstance(part.embedding, torch.nn.Linear):  # the nearest by its direction, of two numbers
                    codebook.copy_(torch.stack([spread.cos(), spread.sin()], dim=1))
                else:
                    codebook.copy_(spread.pow(3)[:, None])
            if isinstance(part, torch.nn.GroupNorm):
                part.forward = lambda values, *rest: values.clone()  # it takes means of the whole picture
            if isinstance(part, (torch.nn.Conv2d, torch.nn.Conv3d)) and part.padding != "valid":
                sides = zip(part.kernel_size[-2:], part.stride[-2:], part.padding[-2:], strict=True)
                firsts = [(first if step > 1 else (size - 1) // 2, step) for size, step, first in sides]
                rows, columns = (slice(first, first + step) for first, step in firsts)
                seen = torch.zeros_like(part.weight)
                seen[..., rows, columns] = 1.0
                part.weight.mul_(seen * seen.mean() ** -0.5)  # as large as before
        for part in towers:
            for name, child in part.named_children():
                if name in ("out_proj", "proj", "projection_layer", "o_proj", "out", "wo", "proj_out"):
                    found += len([parameter.zero_() for parameter in child.parameters()])
    assert found >= 2 or not towers, "the vision tower has no output projection of this name"


def make_pair(model_type):
    """A model and the processor that it fits."""
    processor = make_processor(model_type)
    return make_model(model_type, processor.tokenizer), processor

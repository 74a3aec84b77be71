# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tiny random detectors of transformers, built from configurations and saved to a folder with their processors."""

import numpy as np
import torch
from transformers import (
    BertTokenizer,
    CLIPTokenizer,
    ConditionalDetrConfig,
    ConditionalDetrForObjectDetection,
    DetrConfig,
    DetrForObjectDetection,
    GroundingDinoConfig,
    GroundingDinoForObjectDetection,
    GroundingDinoProcessor,
    Owlv2Config,
    Owlv2ForObjectDetection,
    Owlv2Processor,
    OwlViTConfig,
    OwlViTForObjectDetection,
    OwlViTProcessor,
    ResNetConfig,
    RTDetrConfig,
    RTDetrForObjectDetection,
    RTDetrResNetConfig,
    SwinConfig,
    YolosConfig,
    YolosForObjectDetection,
    set_seed,
)
from transformers.models.conditional_detr.image_processing_pil_conditional_detr import ConditionalDetrImageProcessorPil
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil
from transformers.models.grounding_dino.image_processing_pil_grounding_dino import GroundingDinoImageProcessorPil
from transformers.models.owlv2.image_processing_pil_owlv2 import Owlv2ImageProcessorPil
from transformers.models.owlvit.image_processing_pil_owlvit import OwlViTImageProcessorPil
from transformers.models.rt_detr.image_processing_pil_rt_detr import RTDetrImageProcessorPil
from transformers.models.yolos.image_processing_pil_yolos import YolosImageProcessorPil

LABELS = {0: "cat", 1: "dog", 2: "ball"}
EDGE = {"shortest_edge": 64, "longest_edge": 96}
SMALL_DETR = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}


def save_detector(kind, folder, seed=0):
    """Saves a detector of this kind; the same seed gives the same weights."""
    set_seed(seed)
    model, processor = BUILDERS[kind]()
    # With small random weights all queries give the same result; larger weights make boxes and classes differ.
    for name, weight in model.named_parameters():
        if "query_position_embeddings" in name or "detection_tokens" in name:
            torch.nn.init.normal_(weight, std=5.0)
        elif any(part in name for part in ("class_labels_classifier", "bbox_predictor", "class_embed", "bbox_embed")):
            torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _resnet():
    return ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1], layer_type="basic", out_features=["stage4"]
    )


def _detr():
    config = DetrConfig(
        backbone_config=_resnet(), use_timm_backbone=False, num_queries=30, id2label=LABELS, **SMALL_DETR
    )
    return DetrForObjectDetection(config), DetrImageProcessorPil(size=EDGE)


def _conditional_detr():
    config = ConditionalDetrConfig(
        backbone_config=_resnet(), use_timm_backbone=False, num_queries=30, id2label=LABELS, **SMALL_DETR
    )
    return ConditionalDetrForObjectDetection(config), ConditionalDetrImageProcessorPil(size=EDGE)


def _yolos():
    config = YolosConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=[64, 96],
        num_detection_tokens=20,
        id2label=LABELS,
    )
    return YolosForObjectDetection(config), YolosImageProcessorPil(size=EDGE)


def _rt_detr():
    backbone = RTDetrResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 8, 8, 8],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = RTDetrConfig(
        backbone_config=backbone,
        encoder_hidden_dim=16,
        encoder_in_channels=[8, 8, 8],
        encoder_ffn_dim=16,
        encoder_attention_heads=2,
        d_model=16,
        num_queries=30,
        decoder_in_channels=[16, 16, 16],
        decoder_ffn_dim=16,
        decoder_layers=1,
        decoder_attention_heads=2,
        num_denoising=0,
        id2label=LABELS,
    )
    return RTDetrForObjectDetection(config), RTDetrImageProcessorPil(size={"height": 64, "width": 64})


def _grounding_dino():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "a", "cat", "dog", "red", "ball"]
    tokenizer = BertTokenizer(vocab={word: index for index, word in enumerate(words)})
    backbone = SwinConfig(
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 1, 1],
        window_size=4,
        image_size=64,
        out_features=["stage2", "stage3", "stage4"],
    )
    text = {
        "model_type": "bert",
        "vocab_size": len(words),
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    config = GroundingDinoConfig(
        backbone_config=backbone, text_config=text, num_queries=20, **{**SMALL_DETR, "d_model": 32}
    )
    model = GroundingDinoForObjectDetection(config)
    return model, GroundingDinoProcessor(GroundingDinoImageProcessorPil(size=EDGE), tokenizer)


def _owlvit():
    text, vision, tokenizer, size = _owl_parts()
    config = OwlViTConfig(text_config=text, vision_config=vision, projection_dim=16)
    return OwlViTForObjectDetection(config), OwlViTProcessor(OwlViTImageProcessorPil(size=size), tokenizer)


class _NearestPixels(Owlv2ImageProcessorPil):
    """Resizes without SciPy, which transformers needs for its own resizing."""

    def resize(self, image, size, *args, **kwargs):
        rows, columns = (
            np.arange(side) * found // side
            for side, found in zip((size["height"], size["width"]), image.shape[1:], strict=True)
        )
        return image[:, rows][:, :, columns]


def tiny_owlv2():
    """An OWLv2 and its processor; larger weights, so that queries have different best boxes."""
    set_seed(0)
    text, vision, tokenizer, size = _owl_parts()
    model = Owlv2ForObjectDetection(Owlv2Config(text_config=text, vision_config=vision, projection_dim=16))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model.eval(), Owlv2Processor(_NearestPixels(size=size), tokenizer)


def _owl_parts():
    letters = [*"abcdefghijklmnopqrstuvwxyz"]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer(vocab={word: index for index, word in enumerate(words)}, merges=[])
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**shape, "vocab_size": len(words), "max_position_embeddings": 16, "bos_token_id": 52, "eos_token_id": 53}
    vision = {**shape, "image_size": 64, "patch_size": 16}
    return text, vision, tokenizer, {"height": 64, "width": 64}


BUILDERS = {
    "detr": _detr,
    "conditional_detr": _conditional_detr,
    "yolos": _yolos,
    "rt_detr": _rt_detr,
    "grounding_dino": _grounding_dino,
    "owlvit": _owlvit,
}
ZERO_SHOT = ("grounding_dino", "owlvit")

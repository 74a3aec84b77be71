# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The same for a decoder: a tiny random LLaVA, or a model by name: `minimal_vlm.py Qwen/Qwen2.5-VL-3B-Instruct`."""

import random
import sys

import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, BertTokenizer, LlavaProcessor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from grounded_attention import AttentionGrounding, GroundingCollator, get_method, grounding_loss

COLOURS = ("red", "blue", "green", "yellow", "black", "white")
random.seed(0), torch.manual_seed(0)


def make_row() -> dict:
    """Your row: an image, a prompt and its completion (or messages), and phrases with boxes in [0, 1]."""
    boxes = {name: [i / 3, 0.0, (i + 1) / 3, 1.0] for i, name in enumerate(random.sample(COLOURS, k=3))}
    image = Image.new("RGB", (240, 240))
    for name, box in boxes.items():
        image.paste(name, [round(240 * side) for side in box])
    phrases = [{"text": name, "boxes": [box]} for name, box in boxes.items()]
    return {"image": image, "prompt": "what is here", "completion": " and ".join(sorted(boxes)), "phrases": phrases}


def tiny_llava() -> tuple:
    words = [*"[PAD] [UNK] [CLS] [SEP] [MASK] <image> what is here and".split(), *COLOURS]
    tokens = BertTokenizer({word: i for i, word in enumerate(words)}, extra_special_tokens={"image_token": "<image>"})
    chat = "{% for m in messages %}{% for part in m.content %}{{ part.text or '<image>' }} {% endfor %}{% endfor %}"
    pixels = CLIPImageProcessorPil(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24})
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    vision = {**sizes, "model_type": "clip_vision_model", "image_size": 24, "patch_size": 4}
    config = {"text_config": {**sizes, "vocab_size": len(words)}, "vision_config": vision, "image_token_id": 5}
    model = AutoModelForImageTextToText.from_config(AutoConfig.for_model("llava", **config))
    return model, LlavaProcessor(pixels, tokens, 4, "default", chat, num_additional_image_tokens=1)


@torch.no_grad()
def pointing() -> str:
    """How often the image token that a word attends to most is in its box, on rows that are not trained on."""
    measure, batch = AttentionGrounding(rollout=False), collate([make_row() for _ in range(100)])
    measure.update(model.eval()(**collate.processor.model_inputs(batch), **measure.forward_kwargs(batch)), batch)
    scores = measure.compute(measure.state())
    return f"best head {scores['text_to_region_best_head']:.0%}, chance {scores['text_to_region_chance']:.0%}"


load = (AutoModelForImageTextToText.from_pretrained, AutoProcessor.from_pretrained)
model, processor = [part(sys.argv[1]) for part in load] if sys.argv[1:] else tiny_llava()
method, collate = get_method("direct"), GroundingCollator(processor)
method.prepare(model)
print("before:", pointing())
optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-5 if sys.argv[1:] else 1e-3)
for _ in range(60):
    batch = collate([make_row() for _ in range(16)])
    outputs = model(**collate.processor.model_inputs(batch), **method.forward_kwargs(batch))
    (outputs.loss + grounding_loss(method, outputs, batch)).backward()
    optimizer.step(), optimizer.zero_grad()
print("after: ", pointing())

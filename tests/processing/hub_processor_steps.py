# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Loads the processors of all families from folders as the Hub has them: `python -m ... FOLDER` prints one JSON.

The classes are transformers' own, with their part for videos, and each image processor runs on PIL and on torchvision.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

from tests.helpers.fake_torchvision import install

KIND = install()  # before transformers

from transformers import AutoImageProcessor, AutoProcessor  # noqa: E402

from grounded_attention.processing.patch_grounding import PatchGroundingProcessor  # noqa: E402
from tests.helpers.tiny_vlm_examples import TEXTS, pictures  # noqa: E402
from tests.helpers.tiny_vlm_processors import CHAT_TEMPLATE, PROCESSORS, make_tokenizer  # noqa: E402
from tests.helpers.tiny_vlm_relatives import RELATIVES  # noqa: E402


def save_as_on_hub(model_type, folder):
    """Writes the files of a processor under their older names; returns the name of its class."""
    image_class, settings, own = PROCESSORS[model_type]
    module = import_module(f"transformers.models.{model_type}.processing_{model_type}")
    name = next(name for name in module.__all__ if name.endswith("Processor"))
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    image = {"image_processor_type": f"{image_class.split('.')[1]}ImageProcessor", "processor_class": name, **settings}
    token = {"gemma3": "<boi>"}.get(model_type, "<image>")
    if model_type.startswith("qwen"):
        token = f"<|vision_start|>{token}<|vision_end|>"
    files = {
        "preprocessor_config.json": image,
        "processor_config.json": {"processor_class": name, **own},
        "chat_template.json": {"chat_template": CHAT_TEMPLATE.replace("IMAGE", token)},
        "config.json": {"model_type": model_type},
    }
    if model_type == "qwen3_vl":
        files["video_preprocessor_config.json"] = {"video_processor_type": "Qwen3VLVideoProcessor"}
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))
    return name


def load(model_type, folder, backend):
    """What a processor makes of two texts with pictures."""
    processor = AutoProcessor.from_pretrained(folder)
    processor.image_processor = AutoImageProcessor.from_pretrained(folder, backend=backend)
    images = list(pictures(2).values())
    batch = PatchGroundingProcessor(processor, model_type)(list(TEXTS[:2]), images=images)
    token = processor.tokenizer.convert_tokens_to_ids("<image>")
    return {
        "processor": type(processor).__name__,
        "image_processor": type(processor.image_processor).__name__,
        "video_processor": type(getattr(processor, "video_processor", None)).__name__,
        "tokens": (batch["input_ids"] == token).sum(1).tolist(),
        "regions": (batch["region_positions"] >= 0).sum(1).tolist(),
        "boxes": batch["region_boxes"].nan_to_num(-1).tolist(),
        "pixels": batch["pixel_values"].float().mean().item(),
    }


def main():
    found = {"kind": KIND}
    for model_type in (name for name in PROCESSORS if not name.endswith("_padded") and name not in RELATIVES):
        folder = Path(sys.argv[1], model_type)
        folder.mkdir()
        found[model_type] = {"class": save_as_on_hub(model_type, folder)}
        for backend in ("pil", "torchvision"):
            found[model_type][backend] = load(model_type, folder, backend)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The lines of a card's snippets: where the model is, before and after a push, how it is called, what it sees."""

import re
from typing import Any

from grounded_attention.training.recipes.adapters import is_local
from grounded_attention.utils.plain_text import printable

# Files of a card besides its text.
FIGURE = "head_grounding.png"
EVAL_RESULTS = ".eval_results/results.yaml"
VLM_TEMPLATE = "trained_vlm.md"
LIMITS = (
    "The model cannot attend to a region that the detector missed, and it cannot use features of another model than "
    "that of training.",
    "Attention shows where a head looks, not why the model gives an answer; grounded-attention evaluate --faithful "
    "measures how faithful a map is.",
    "The model reads English only, and it has learned the biases of the captions and images of the training data.",
)
VLM_LIMITS = (
    "The model sees an image as its processor resizes, crops or tiles it; an object may be less than a token.",
    "Attention shows where a head looks, not why the model gives an answer; grounded-attention look --faithful "
    "measures how faithful a map is.",
    "The model has learned the biases of its original training, and of the texts and images of this one.",
)
OWN_PROCESSOR = "name, revision=revision"  # where a snippet loads the processor from
# The model of an adapter whose folder nobody else has: PEFT's file names it, and no card does.
LOCAL_BASE = "PeftConfig.from_pretrained(name, revision=revision).base_model_name_or_path"
_LINE = re.compile(r'^name, revision = "[^"\n]*", "[^"\n]*"$', re.MULTILINE)


def base_lines(base: str | None) -> dict[str, str | None]:
    """The variables of a template about the model of an adapter; None without one."""
    if base is None:
        return {"base_model": None}
    if is_local(base):
        of_peft = "PeftConfig, PeftModel"
        named = "a model in a folder of its author"
        return {"base_model": LOCAL_BASE, "base_named": named, "of_peft": of_peft}
    return {"base_model": f'"{base}"', "base_named": f"`{base}`", "of_peft": "PeftModel"}


def place_line(name: str, revision: str | None = None) -> str:
    """The first line of a snippet of the templates; the revision defaults to main."""
    return f'name, revision = "{name}", "{revision or "main"}"'


def move_card(text: str, name: str, revision: str | None = None) -> str:
    """Changes the snippets of a card to load from `name`; a card without our line is not changed."""
    line = place_line(name, revision)
    return _LINE.sub(lambda _: line, text)


def forward_lines(example: str, caption: str, phrase: str) -> str:
    """The lines of the forward call."""
    return example.format(word=phrase.split()[-1], other=phrase)


def feature_model(source: Any) -> str:
    """The name of the model that computed features, for a comment of one line."""
    return printable(" ".join(source["name"].split()), 200)


def seen_lines(pixels: bool, feature_size: int, source: Any) -> str:
    """The lines that make example inputs for the regions of an image."""
    boxes = "boxes = [[0, 0, 320, 480], [320, 120, 640, 480]]  # x1 y1 x2 y2 in pixels, from a detector"
    if pixels:
        lines = ['image = Image.new("RGB", (640, 480))  # your image', boxes]
        return "\n".join([*lines, 'seen = {"images": image, "region_boxes": boxes, "image_sizes": (640, 480)}'])
    named = f"computed by {feature_model(source)}, as in training" if source else "computed as in training"
    features = f"features = np.random.rand(2, {feature_size})  # features of your boxes, {named}"
    return "\n".join(
        [boxes, features, 'seen = {"region_features": features, "region_boxes": boxes, "image_sizes": (640, 480)}']
    )

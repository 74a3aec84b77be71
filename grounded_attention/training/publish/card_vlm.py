# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What the card of a vision-language model says beside that of the project's own models."""

from typing import Any

from grounded_attention.heads.ranking import heads_before
from grounded_attention.supervision.supervise import unwrap_model
from grounded_attention.tasks.generation_rows import CAPTION, EXPRESSION, QUESTION
from grounded_attention.tasks.grounded_generation import GroundedGenerationOptions, make_chat

TEMPLATE = "trained_vlm.md"
LIMITS = (
    "The model sees an image as its processor resizes, crops or tiles it; an object may be less than a token.",
    "Attention shows where a head looks, not why the model gives an answer.",
    "The model has learned the biases of its original training, and of the texts and images of this one.",
)
_EXAMPLE = {"text": "a red ball", "box": [0.1, 0.2, 0.5, 0.6], "phrases": []}


def vlm_content(
    model: Any, source: str | None, kinds: list[str], options: GroundedGenerationOptions
) -> dict[str, Any]:
    """
    The variables of the template that only vision-language models have.
    """
    kind = next((kind for kind in (CAPTION, EXPRESSION, QUESTION) if kind in kinds), CAPTION)
    example = {**_EXAMPLE, "kind": kind, "answer": ""}
    if kind == QUESTION:
        example["text"] = "What color is the ball?"
    prompt = make_chat(example, options).prompt
    return {"base_model": base_model(model), "prompt": prompt, "heads_before": heads_before(source)}


def base_model(model: Any) -> str | None:
    """The name of the model that an adapter belongs to; `None` without an adapter."""
    if model is unwrap_model(model):
        return None
    return next(iter(model.peft_config.values())).base_model_name_or_path

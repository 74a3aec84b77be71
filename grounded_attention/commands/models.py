# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What commands that run a vision-language model share: how it is loaded, and which heads are meant."""

from dataclasses import dataclass
from typing import Annotated, Any

DTYPES = ("bfloat16", "float16", "float32")  # names of torch's types
Dtype = Annotated[str, DTYPES]


@dataclass(frozen=True)
class ModelOptions:
    """How a vision-language model is loaded.

    Args:
        device (NAME): cpu, cuda, cuda:1 ...; auto: over all GPUs, and the memory of the machine (default: one GPU per
            process if there is one)
        dtype: floating type of the model, or bits of its weights (bitsandbytes)
    """

    device: str | None = None
    dtype: Annotated[str, (*DTYPES, "4bit", "8bit")] = "float32"

    def load(self, name: str, **how: Any) -> Any:
        """The model and its processor."""
        from transformers.utils import logging

        from grounded_attention.training.experiments import pretrained

        logging.disable_progress_bar()
        return pretrained.load_vlm(name, dtype=self.dtype, device=self.device, **how)


def read_heads(text: str) -> Any:
    """The value of --heads: auto, all, a layer, pairs such as 14-3,20-0, or a file."""
    if text.isdecimal():
        return int(text)
    pairs = [part.strip().split("-") for part in text.split(",")]
    if all(len(pair) == 2 and all(each.isdecimal() for each in pair) for pair in pairs):
        return [(int(layer), int(head)) for layer, head in pairs]
    return text

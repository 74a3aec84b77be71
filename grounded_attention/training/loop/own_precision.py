# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measuring in the precision of the weights, also after a training in mixed precision."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from transformers import PreTrainedModel


@contextmanager
def without_autocast(model: nn.Module) -> Iterator[None]:
    """
    Removes the autocast that Accelerate puts around the `forward` of a model in training. So the figures at the end of
    a training are those of its checkpoint, which is loaded without autocast. FlashAttention keeps it: it cannot
    compute in float32.
    """
    plain, wrapped = model.__dict__.get("_original_forward"), model.__dict__.get("forward")
    if plain is None or wrapped is None or _needs_half(model):
        yield
        return
    model.forward = plain
    try:
        yield
    finally:
        model.forward = wrapped


def _needs_half(model: nn.Module) -> bool:
    parts = [part.config for part in model.modules() if isinstance(part, PreTrainedModel)]
    names = {str(config._attn_implementation).removeprefix("supervised_") for config in parts}
    return not names <= {"sdpa", "eager", "flex_attention", "None"}

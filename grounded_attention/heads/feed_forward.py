# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs feed-forward layers on a few tokens at a time; their wide hidden states need the most memory in an audit."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

# Tokens per part: few are enough for the cores of a CPU; a GPU needs more.
TOKENS = {"cpu": 256}
MANY = 8192


@contextmanager
def feed_forward_in_parts(model: Any) -> Iterator[None]:
    """
    Context in which transformers' BERT layers of the model process tokens in parts. It works only without gradients.

    transformers' own `chunk_size_feed_forward` splits the sequence and needs a divisor of its length. Other kinds of
    layers are not changed.
    """
    layers = [module for module in model.modules() if hasattr(module, "feed_forward_chunk")]
    tokens = TOKENS.get(model.device.type, MANY)
    try:
        for layer in layers:
            layer.feed_forward_chunk = partial(_in_parts, layer.feed_forward_chunk, tokens)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("feed_forward_chunk", None)


def _in_parts(feed_forward: Any, tokens: int, attention_output: Tensor) -> Tensor:
    flat = attention_output.flatten(0, -2)
    done = torch.empty_like(flat)
    for part, place in zip(flat.split(tokens), done.split(tokens), strict=True):
        place.copy_(feed_forward(part))
    return done.view_as(attention_output)

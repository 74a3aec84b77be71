# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tiny models and inputs for the supervision tests, and a check that no attention map is made."""

from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

from grounded_attention.supervision import supervised_implementation

LENGTH = 23
HEADS = 4
LAYERS = 3
WIDTH = 32
# The last eight positions of the second example are padding.
PADDING = torch.ones(2, LENGTH, dtype=torch.long)
PADDING[1, 15:] = 0

_SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "vocab_size": 50,
    "initializer_range": 0.3,  # sharp attention
}


def bert(back_end="sdpa", attention_probs_dropout_prob=0.0):
    torch.manual_seed(0)
    config = BertConfig(**_SIZES, attention_probs_dropout_prob=attention_probs_dropout_prob, hidden_dropout_prob=0.0)
    return BertModel._from_config(config, attn_implementation=back_end)


def llama(back_end="sdpa"):
    """A causal model with two query heads per key head."""
    torch.manual_seed(0)
    return LlamaModel._from_config(LlamaConfig(**_SIZES, num_key_value_heads=2), attn_implementation=back_end)


def supervised(model):
    model.set_attn_implementation(supervised_implementation(model))
    return model


def embeddings():
    return torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()


def gradients(total, model, inputs):
    """Returns the gradients of the inputs and of all weights that have one, in a fixed order."""
    found = torch.autograd.grad(total, [inputs, *model.parameters()], allow_unused=True, retain_graph=True)
    return [gradient for gradient in found if gradient is not None]


class _MapWatchdog(TorchDispatchMode):
    def __init__(self, batch, heads, length):
        super().__init__()
        self.maps = batch * heads
        self.length = length

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        for tensor in tree_iter(output):
            square = isinstance(tensor, torch.Tensor) and tensor.shape[-2:] == (self.length, self.length)
            if square and tensor.shape[:-2].numel() >= self.maps:
                raise AssertionError(f"{function} makes a tensor of {tuple(tensor.shape)}")
        return output


@contextmanager
def forbid_maps(batch, heads, length):
    """Raises an error for tensors with B * H or more maps of N x N, in the forward and the backward pass."""
    with _MapWatchdog(batch, heads, length):
        yield

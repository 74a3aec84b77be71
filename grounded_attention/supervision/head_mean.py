# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention averaged over heads, with (B, N, M) memory: a few heads at a time, computed again in the backward pass.

Shape letters: B batch, H heads, N query positions, M key positions, d head width.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .row_states import cap

# Limit of map elements in memory. Also at most half of the heads are in memory, so (B, H, N, M) never exists.
CHUNK_ELEMENTS = 2**23


def head_mean(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    scaling: float,
    heads: tuple[int, ...] | None,
    lowest: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Mean over heads of softmax(scaling * query key^T + mask); `softcap` limits scores, `sinks` are left out."""
    if sinks is not None and sinks.dim() == 1:
        sinks = sinks.view(1, -1, 1, 1)
    if key.shape[1] != query.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    if heads is not None:
        query = query[:, list(heads)]
        key = key[:, list(heads)]
        if mask is not None and mask.shape[1] > 1:
            mask = mask[:, list(heads)]
        if sinks is not None:
            sinks = sinks[:, list(heads)]
    if softcap is not None or sinks is not None or (mask is not None and mask.requires_grad):
        rest = (scaling, lowest, softcap, sinks)
        parts = []
        for each in _chunks(query, key):
            parts.append(checkpoint(_probabilities, query, key, mask, each, *rest, use_reentrant=False).sum(1))
        return torch.stack(parts).sum(0) / query.shape[1]
    return _HeadMean.apply(query, key, mask, scaling, lowest)


class _HeadMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, mask: Tensor | None, scaling: float, lowest: float) -> Tensor:
        ctx.save_for_backward(query, key, mask)
        ctx.scaling = scaling
        ctx.lowest = lowest
        total = query.new_zeros(query.shape[0], query.shape[2], key.shape[2], dtype=torch.float32)
        for heads in _chunks(query, key):
            total += _probabilities(query, key, mask, heads, scaling, lowest).sum(1)
        return total / query.shape[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, mask = ctx.saved_tensors
        grad = grad[:, None] * (ctx.scaling / query.shape[1])
        query_grad = torch.empty_like(query)
        key_grad = torch.empty_like(key)
        for heads in _chunks(query, key):
            probabilities = _probabilities(query, key, mask, heads, ctx.scaling, ctx.lowest)
            scores_grad = grad * probabilities
            scores_grad -= probabilities.mul_(scores_grad.sum(-1, keepdim=True))
            scores_grad = scores_grad.to(query.dtype)
            query_grad[:, heads] = scores_grad @ key[:, heads]
            key_grad[:, heads] = scores_grad.transpose(2, 3) @ query[:, heads]
        return query_grad, key_grad, None, None, None


def _chunks(query: Tensor, key: Tensor) -> Iterator[slice]:
    """Yields slices of heads whose maps fit in memory."""
    heads = query.shape[1]
    fitting = CHUNK_ELEMENTS // (query.shape[0] * query.shape[2] * key.shape[2])
    size = max(1, min(fitting, heads // 2))
    for start in range(0, heads, size):
        yield slice(start, min(start + size, heads))


def _probabilities(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    heads: slice,
    scaling: float,
    lowest: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    scores = cap((query[:, heads] @ key[:, heads].transpose(2, 3)).float().mul_(scaling), softcap)
    if mask is not None:
        if mask.shape[1] > 1:
            mask = mask[:, heads]
        # float16 has no number as low.
        added = mask.dtype != torch.bool
        if added:
            scores = scores.add_(mask.float().clamp(min=lowest))
        else:
            scores = scores.masked_fill_(~mask, lowest)
    if sinks is None:
        return scores.softmax(-1)
    column = sinks[:, heads].float().expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], -1).softmax(-1)[..., :-1]

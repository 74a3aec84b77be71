# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention rollout: the share of each input position in each position after each attention call.

Abnar and Zuidema (2020), for one sequence. For two streams with co-attention the same rule applies to blocks.
Shape letters: B batch, N sequence, S and K positions of the streams of queries and keys.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grounded_attention.modeling.attention_calls import SEQUENCE, AttentionCall, one_stream_calls

# (stream, source) -> (B, positions of the stream, positions of the source).
Blocks = dict[tuple[str, str], Tensor]


def attention_rollout(means: Sequence[Tensor]) -> list[Tensor]:
    """Computes the rollout R_l = W_l R_{l-1} after each layer.

    W_l is the head-averaged attention of layer l plus the identity (the residual connection), with normalised rows;
    R_0 = W_0.

    Args:
        means (`Sequence[Tensor]`): one (B, N, N) head-averaged attention map per layer, from the first layer on. Rows
            sum to 1, or to less after dropout.

    Returns:
        `list[Tensor]`: one (B, N, N) per layer. Rows sum to 1, and padded columns stay 0 in the rows of other
        positions.
    """
    blocks = rollout_blocks(means, one_stream_calls(len(means), 1))
    return [rollout for after in blocks for rollout in after.values()]


def rollout_blocks(means: Sequence[Tensor], calls: Sequence[AttentionCall]) -> list[Blocks]:
    """Computes the rollout after each call, in blocks: the share of each source in each stream.

    Let A be the head-averaged attention of a call. For each source, R[queries] becomes (A R[keys] + R[queries]) with
    normalised rows. Calls with the same name, such as the two directions of a co-attention, read the state before the
    first of them. With one stream the result equals [`attention_rollout`].
    """
    state: Blocks = {}
    before = state
    name = None
    states = []
    for mean, call in zip(means, calls, strict=True):
        if call.name != name:
            before = state
            name = call.name
        state = {**state, **_mix(mean, call.query_stream, call.key_stream, before)}
        states.append(state)
    return states


def rollout_layers(observed: Sequence[Any]) -> list[Blocks]:
    """Computes the rollout after each layer in which words and regions meet, from the reports of the layers."""
    calls = [layer.call or AttentionCall(f"layer {i}", SEQUENCE, SEQUENCE, 1) for i, layer in enumerate(observed)]
    blocks = rollout_blocks([layer.mean for layer in observed], calls)
    after = {call.name: state for call, state in zip(calls, blocks, strict=True) if call.directions}
    return list(after.values())


def _mix(mean: Tensor, queries: str, keys: str, before: Mapping[tuple[str, str], Tensor]) -> Blocks:
    """Computes the blocks of the query stream after a call."""
    if queries == keys:
        mixed = mean + torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
        mixed = mixed / mixed.sum(-1, keepdim=True)
        blocks = {pair: mixed @ block for pair, block in before.items() if pair[0] == queries}
        return blocks or {(queries, queries): mixed}
    total = mean.sum(-1, keepdim=True) + 1
    own = _rows_of(before, queries, mean.shape[1], mean)
    other = _rows_of(before, keys, mean.shape[2], mean)
    blocks = {}
    for source in dict.fromkeys([*own, *other]):
        if source in other:
            parts = [mean @ other[source]]
        else:
            parts = []
        parts += [own[source]] if source in own else []
        blocks[queries, source] = sum(parts[1:], start=parts[0]) / total
    return blocks


def _rows_of(state: Mapping[tuple[str, str], Tensor], stream: str, size: int, like: Tensor) -> dict[str, Tensor]:
    """Returns source -> block of a stream; the identity if the stream has no blocks."""
    rows = {source: block for (held, source), block in state.items() if held == stream}
    return rows or {stream: torch.eye(size, dtype=like.dtype, device=like.device).expand(len(like), -1, -1)}

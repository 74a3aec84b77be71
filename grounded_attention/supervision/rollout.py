# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention rollout: how much of each input position has reached each position after every attention call.

Abnar and Zuidema (2020), for one sequence; for two streams that look at each other the same rule in blocks.
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
    """Rollout R_l = W_l R_{l-1} after every layer, where W_l is a layer's head-averaged attention plus the identity
    (the residual connection), its rows normalised, and R_0 = W_0.

    Args:
        means: one (B, N, N) head-averaged attention map a layer, from the first layer on; rows sum to 1, or to what a
            dropout left.

    Returns:
        one (B, N, N) a layer; rows sum to 1, and padded columns stay 0 in the rows of attended positions.
    """
    blocks = rollout_blocks(means, one_stream_calls(len(means), 1))
    return [rollout for after in blocks for rollout in after.values()]


def rollout_blocks(means: Sequence[Tensor], calls: Sequence[AttentionCall]) -> list[Blocks]:
    """Rollout after every call, in blocks: how much of each source has reached each stream.

    A call adds to its queries' stream what has reached its keys: with A its head-averaged attention, for every source
    R[queries] becomes (A R[keys] + R[queries]) with rows normalised as above. Calls of one name read the state before
    the first of them, as the two directions of a co-attention do. With one stream this is `attention_rollout`.

    Args:
        means: one (B, S, K) head-averaged attention map a call, in the order of execution, self-attention of each
            stream included.
        calls: which streams each call has.

    Returns:
        for each call the blocks after it; a stream that no call has touched yet is absent as a stream, since nothing
        has reached it but itself.
    """
    state: Blocks = {}
    before, name = state, None
    found = []
    for mean, call in zip(means, calls, strict=True):
        if call.name != name:
            before, name = state, call.name
        state = {**state, **_mix(mean, call.query_stream, call.key_stream, before)}
        found.append(state)
    return found


def roll_out(observed: Sequence[Any]) -> list[Blocks]:
    """Rollout after each layer that words and regions meet in, from what the attention function reported.

    Args:
        observed: a `SupervisedAttention` with a `mean` for every call, in the order of execution. Calls that say
            nothing of themselves are the layers of one sequence.

    Returns:
        for each layer, which is one call, or the calls of one name, its blocks.
    """
    calls = [layer.call or AttentionCall(f"layer {i}", SEQUENCE, SEQUENCE, 1) for i, layer in enumerate(observed)]
    blocks = rollout_blocks([layer.mean for layer in observed], calls)
    after = {call.name: state for call, state in zip(calls, blocks, strict=True) if call.directions}
    return list(after.values())


def _mix(mean: Tensor, queries: str, keys: str, before: Mapping[tuple[str, str], Tensor]) -> Blocks:
    """What a call makes of the blocks of its queries' stream."""
    if queries == keys:
        mixed = mean + torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
        mixed = mixed / mixed.sum(-1, keepdim=True)
        blocks = {pair: mixed @ block for pair, block in before.items() if pair[0] == queries}
        return blocks or {(queries, queries): mixed}
    total = mean.sum(-1, keepdim=True) + 1
    own, other = _rows_of(before, queries, mean.shape[1], mean), _rows_of(before, keys, mean.shape[2], mean)
    blocks = {}
    for source in dict.fromkeys([*own, *other]):
        parts = [mean @ other[source]] if source in other else []
        parts += [own[source]] if source in own else []
        blocks[queries, source] = sum(parts[1:], start=parts[0]) / total
    return blocks


def _rows_of(state: Mapping[tuple[str, str], Tensor], stream: str, size: int, like: Tensor) -> dict[str, Tensor]:
    """Source -> block of a stream; itself alone where nothing has reached it."""
    rows = {source: block for (held, source), block in state.items() if held == stream}
    return rows or {stream: torch.eye(size, dtype=like.dtype, device=like.device).expand(len(like), -1, -1)}

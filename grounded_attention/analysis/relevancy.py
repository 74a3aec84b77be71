# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Five relevancy maps: how much each region contributes to one decision of a model.

- `raw_last`: attention of the last layer, mean over heads;
- `raw_mean`: attention, mean over heads and layers;
- `rollout`: attention multiplied through the layers with the residual connection (Abnar and Zuidema, 2020);
- `contribution`: what the position adds to the score through all heads, along the direct path; of either sign;
- `relevancy`: gradient-weighted (Chefer, Gur and Wolf, 2021, "Generic Attention-model Explainability", equations 5 to
  11): the positive part of attention times its gradient, mean over heads, accumulated through the attention calls.

The first three do not depend on the decision; the others use the score of the decision. All maps are taken from the
row of the position from which the model computes the decision (`ReadOut`).

The maps are written over the attention calls of a model (`config.attention_calls`), so they are the same for one
sequence and for two streams. In two streams the raw maps are those of the calls from the stream of the row to the
regions.

Shape letters: B batch, H heads, N sequence, S positions of the queries' stream, K of the keys' stream, T text,
R regions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grounded_attention.heads.attention_readers import AttentionReader, reading
from grounded_attention.heads.direct_path import direct_path, innermost
from grounded_attention.modeling.attention_calls import REGIONS, SEQUENCE, TEXT, AttentionCall, one_stream_calls
from grounded_attention.supervision.head_masking import block_projections
from grounded_attention.supervision.rollout import Blocks, rollout_blocks
from grounded_attention.supervision.row_states import score
from grounded_attention.utils.named_types import Batch, Columns

from . import MAPS

RAW_LAST, RAW_MEAN, ROLLOUT, RELEVANCY, CONTRIBUTION = MAPS


@dataclass(frozen=True, eq=False)
class ReadOut:
    """The decision for each example."""

    score: Tensor
    rows: Tensor


Reader = Callable[[Any, Columns], ReadOut]


def region_maps(model: Any, inputs: Batch, read_out: Reader, maps: Sequence[str] = MAPS) -> dict[str, Tensor]:
    """Computes relevancy maps over the regions of each example."""
    unknown = [name for name in maps if name not in MAPS]
    if unknown:
        raise ValueError(f"unknown maps {', '.join(unknown)}; expected some of {', '.join(MAPS)}")
    if model.training:
        raise ValueError("the model is in training mode, in which dropout changes its maps; call model.eval() first")
    with torch.enable_grad(), _eager(model):
        outputs = model(**inputs, output_attentions=True, return_dict=True)
        attentions = outputs.attentions
        calls = getattr(model.config, "attention_calls", None)
        if not attentions or calls is None:
            raise ValueError(f"{type(model).__name__} returns no attention maps: load a model of this project")
        decided = read_out(outputs, inputs)
        gradients = gradients_of(decided.score, attentions) if RELEVANCY in maps else []
        added = region_contributions(model, inputs, read_out, attentions) if CONTRIBUTION in maps else []
    with torch.no_grad():
        weights = [attention.detach().float() for attention in attentions]
        texts = inputs["input_ids"].shape[1]
        regions = inputs["region_attention_mask"].shape[1]
        attended = inputs["region_attention_mask"].bool()
        attended_maps = {}
        for name in maps:
            given = added if name == CONTRIBUTION else weights
            mapped = _map(name, given, gradients, calls)
            attended_maps[name] = _rows(mapped, decided.rows, texts, regions) * attended
        return attended_maps


def _rows(blocks: Mapping[str, Tensor], rows: Tensor, texts: int, regions: int) -> Tensor:
    """The values of the regions (B, R) in the row of each example; `blocks` are stream -> (B, S, K)."""
    examples = torch.arange(len(rows), device=rows.device)
    if SEQUENCE in blocks:
        return blocks[SEQUENCE][examples, rows][:, texts : texts + regions]
    whole = torch.cat([blocks[TEXT][:, :texts], blocks[REGIONS][:, :regions]], dim=1)
    return whole[examples, rows][:, :regions]


def _map(
    name: str, attentions: Sequence[Tensor], gradients: Sequence[Tensor], calls: Sequence[AttentionCall]
) -> dict[str, Tensor]:
    """Stream of the rows -> a map over the regions, or over the whole sequence, (B, S, K)."""
    if calls[0].query_stream == SEQUENCE:
        streams = [SEQUENCE]
    else:
        streams = [TEXT, REGIONS]
    source = streams[-1]
    if name in (ROLLOUT, RELEVANCY):
        if name == ROLLOUT:
            blocks = rollout_blocks([attention.mean(1) for attention in attentions], calls)[-1]
        else:
            blocks = attention_relevancy(attentions, gradients, calls)
        return {stream: blocks[stream, source] for stream in streams}
    maps = {}
    for stream in streams:
        means = []
        for attention, call in zip(attentions, calls, strict=True):
            if (call.query_stream, call.key_stream) == (stream, source):
                means.append(attention.mean(1))
        stacked = torch.stack(means)
        if name == RAW_LAST:
            maps[stream] = means[-1]
        elif name == CONTRIBUTION:
            maps[stream] = stacked.sum(0)
        else:
            maps[stream] = stacked.mean(0)
    return maps


class _OutputLeaves(AttentionReader):
    """Keeps values, and outputs of attention that begin their own gradients, in the order of the calls."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []
        self.given: list[Tensor] = []

    def keep_output(self, module: Any, value: Tensor, output: Tensor) -> Tensor:
        self.values.append(value.detach())
        self.given.append(output.detach().requires_grad_())
        return self.given[-1]


def region_contributions(model: Any, inputs: Batch, read_out: Reader, attentions: Sequence[Tensor]) -> list[Tensor]:
    """What each position adds to the score of each example, through each attention call: (B, 1, S, K), in the rows
    from which the score is read.

    The read-out is linear to first order; with the frozen norms of [`direct_path`] the sum over positions is what
    the output of all heads adds.
    """
    encoder = innermost(model)
    projections = []
    for block in encoder.modules():
        if any(hasattr(child, "layer_idx") for child in block.children()):
            projections += block_projections(block)
    reader = _OutputLeaves()
    with reading(model, reader), direct_path(encoder, projections):
        score_of_each = read_out(model(**inputs, return_dict=True), inputs).score
    gradients = gradients_of(score_of_each, reader.given)
    added = []
    for attention, value, gradient in zip(attentions, reader.values, gradients, strict=True):
        readings = score(gradient.transpose(1, 2), value)  # (B, H, S, K)
        added.append((attention.detach() * readings).sum(1, keepdim=True))
    return added


def attention_relevancy(
    attentions: Sequence[Tensor], gradients: Sequence[Tensor], calls: Sequence[AttentionCall] | None = None
) -> Blocks:
    """The contribution of each input to each output: a relevancy R for every pair of streams, which starts with the
    identity. A is the mean over heads of the positive part of gradient times attention. A call of one stream adds A R
    to the rows of the stream. A call between two streams adds A, between the normalised relevancies of both, and
    A R to the rows of the queries; calls of one name read the relevancies before the first of them.
    """
    if calls is None:
        calls = one_stream_calls(len(attentions), 1)
    sizes = {call.query_stream: attention.shape[2] for call, attention in zip(calls, attentions, strict=True)}
    like = attentions[0]
    state: Blocks = {}
    for a in sizes:
        for b in sizes:
            block = torch.eye(sizes[a]) if a == b else torch.zeros(sizes[a], sizes[b])
            state[a, b] = block.to(like.device).expand(len(like), -1, -1)
    before = state
    name = None
    for call, attention, gradient in zip(calls, attentions, gradients, strict=True):
        if call.name != name:
            before = state
            name = call.name
        weighted = (gradient.float() * attention.float()).clamp(min=0).mean(1)
        state = {**state, **_changed(call.query_stream, call.key_stream, weighted, before, state)}
    return state


def _changed(query: str, key: str, weighted: Tensor, before: Blocks, state: Blocks) -> Blocks:
    """The relevancies that one attention changes: the current ones plus its part, computed from those `before`."""
    if query == key:
        return {pair: state[pair] + weighted @ before[pair] for pair in state if pair[0] == query}
    through = _normalised(before[query, query]).transpose(1, 2) @ weighted @ _normalised(before[key, key])
    return {
        (query, key): state[query, key] + through,
        (query, query): state[query, query] + weighted @ before[key, query],
    }


def _normalised(relevancy: Tensor) -> Tensor:
    """Equations 8 and 9: normalises the rows of R - I to sum 1, and adds I."""
    identity = torch.eye(relevancy.shape[-1], device=relevancy.device)
    added = relevancy - identity
    return added / added.sum(-1, keepdim=True).clamp(min=torch.finfo(added.dtype).tiny) + identity


def gradients_of(score: Tensor, attentions: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of the scores (B,) with respect to the attention maps."""
    if not attentions[0].requires_grad:
        raise ValueError("the weights of the model need no gradients; call model.requires_grad_(True) first")
    # Examples of a batch are independent, so the gradient of the sum is the gradient of each score.
    gradients = torch.autograd.grad(score.sum(), attentions, allow_unused=True)
    return [torch.zeros_like(a) if g is None else g for a, g in zip(attentions, gradients, strict=True)]


@contextmanager
def _eager(model: Any) -> Iterator[None]:
    """Sets the eager back end, the only one whose maps have gradients."""
    before = model.config._attn_implementation
    if before == "eager":
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.config._attn_implementation = before

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How much each region matters for one decision of a model, by four maps.

- `raw_last`: attention of the last layer, mean over heads;
- `raw_mean`: mean over layers too;
- `rollout`: attention multiplied through the layers with the residual connection (Abnar and Zuidema, 2020);
- `relevancy`: gradient-weighted (Chefer, Gur and Wolf, 2021, "Generic Attention-model Explainability", equations 5 and
  6): of each layer the positive part of attention x its gradient, mean over heads, added up through the layers.

The first three do not know what was decided; the last follows the score of the decision. All are read in the row of
the position that the decision is read from (`ReadOut`).

For models of one sequence of words and regions; transformers' LXMERT, of two streams, is in `relevancy_two_streams`.

Shape letters: B batch, L layers, H heads, N sequence, T text, R regions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grounded_attention.supervision.rollout import attention_rollout

RAW_LAST, RAW_MEAN, ROLLOUT, RELEVANCY = "raw_last", "raw_mean", "rollout", "relevancy"
MAPS = (RAW_LAST, RAW_MEAN, ROLLOUT, RELEVANCY)


@dataclass(frozen=True, eq=False)
class ReadOut:
    """A decision of each example.

    Args:
        score (`Tensor`): (B,) float, what was decided for, with its graph, such as the highest logit.
        rows (`Tensor`): (B,) int64, the position of the sequence whose last state the score is read from.
    """

    score: Tensor
    rows: Tensor


Reader = Callable[[Any, Mapping[str, Any]], ReadOut]


def region_maps(
    model: Any, inputs: Mapping[str, Any], read_out: Reader, maps: Sequence[str] = MAPS
) -> dict[str, Tensor]:
    """
    Each map of each example, over its regions.

    Args:
        model (`Any`): one that gives its attention maps (`output_attentions=True`) with the eager back end, for the
            time of the call set to it; its sequence begins with the T words and the R regions. Or one with a
            `region_maps` of its own (`TwoStreamModel`). Dropout must be off.
        inputs (`Mapping[str, Any]`): of the model: `input_ids` (B, T), `region_attention_mask` (B, R) among them.
        read_out (`Reader`): (outputs, inputs) -> what was decided, and where.
        maps (`Sequence[str]`, *optional*, defaults to `MAPS`): which of `MAPS`.

    Returns:
        `dict[str, Tensor]`: map -> (B, R) float32, no less than 0; 0 at regions that are not attended to.

    Raises:
        ValueError: an unknown map, a model that is in training or of two streams, or weights that take no gradients.
    """
    unknown = [name for name in maps if name not in MAPS]
    if unknown:
        raise ValueError(f"maps {', '.join(unknown)}: unknown; known: {', '.join(MAPS)}")
    if model.training:
        raise ValueError("the model is in training, where dropout changes its maps; call model.eval() first")
    if hasattr(model, "region_maps"):
        return model.region_maps(inputs, read_out, maps)
    with torch.enable_grad(), _eager(model):
        outputs = model(**inputs, output_attentions=True)
        attentions = _one_stream(model, outputs, inputs)
        decided = read_out(outputs, inputs)
        gradients = gradients_of(decided.score, attentions) if RELEVANCY in maps else []
    with torch.no_grad():
        found = [attention.detach().float() for attention in attentions]
        start, regions = inputs["input_ids"].shape[1], inputs["region_attention_mask"].shape[1]
        rows = torch.arange(len(decided.rows), device=decided.rows.device), decided.rows
        attended = inputs["region_attention_mask"].bool()
        return {name: _map(name, found, gradients)[rows][:, start : start + regions] * attended for name in maps}


def _map(name: str, attentions: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """(B, N, N)."""
    if name == RELEVANCY:
        return attention_relevancy(attentions, gradients)
    means = [attention.mean(1) for attention in attentions]
    if name == ROLLOUT:
        return attention_rollout(means)[-1]
    return means[-1] if name == RAW_LAST else torch.stack(means).mean(0)


def attention_relevancy(attentions: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """
    R = I; for each layer R <- R + A R, where A is the mean over heads of the positive part of gradient x attention.

    Args:
        attentions (`Sequence[Tensor]`): (B, H, N, N) a layer, from the first on.
        gradients (`Sequence[Tensor]`): of the score with respect to each.

    Returns:
        `Tensor`: (B, N, N): how much of each column's input counts for each row's output.
    """
    first = attentions[0]
    relevancy = torch.eye(first.shape[-1], device=first.device).expand(len(first), -1, -1)
    for attention, gradient in zip(attentions, gradients, strict=True):
        weighted = (gradient.float() * attention.float()).clamp(min=0).mean(1)
        relevancy = relevancy + weighted @ relevancy
    return relevancy


def gradients_of(score: Tensor, attentions: Sequence[Tensor]) -> list[Tensor]:
    """The gradient of each example's score (B,) with respect to each of its attention maps.

    Raises:
        ValueError: the model's weights take no gradients.
    """
    if not attentions[0].requires_grad:
        raise ValueError("the model's weights take no gradients; call model.requires_grad_(True) first")
    # Examples of a batch do not touch each other: the gradient of the sum is that of each one's own score.
    found = torch.autograd.grad(score.sum(), attentions, allow_unused=True)
    return [torch.zeros_like(a) if g is None else g for a, g in zip(attentions, found, strict=True)]


def _one_stream(model: Any, outputs: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, ...]:
    attentions = getattr(outputs, "attentions", None)
    least = inputs["input_ids"].shape[1] + inputs["region_attention_mask"].shape[1]
    if not attentions or any(a is None or a.ndim != 4 or a.shape[2] != a.shape[3] for a in attentions):
        raise ValueError(
            f"{type(model).__name__} has no attention maps over one sequence of words and regions; maps are compared "
            "for single-stream models such as vl_bert and visualbert, and for transformers' LXMERT wrapped in "
            "grounded_attention.analysis.relevancy_two_streams.TwoStreamModel"
        )
    if attentions[0].shape[-1] < least:
        raise ValueError(f"maps of width {attentions[0].shape[-1]} cannot hold {least} words and regions")
    return attentions


@contextmanager
def _eager(model: Any) -> Iterator[None]:
    """The eager back end, the only one whose maps have gradients."""
    before = model.config._attn_implementation
    if before == "eager":
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)

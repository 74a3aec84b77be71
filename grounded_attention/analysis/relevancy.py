# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Four relevancy maps: how much each region contributes to one decision of a model.

- `raw_last`: attention of the last layer, mean over heads;
- `raw_mean`: attention, mean over heads and layers;
- `rollout`: attention multiplied through the layers with the residual connection (Abnar and Zuidema, 2020);
- `relevancy`: gradient-weighted (Chefer, Gur and Wolf, 2021, "Generic Attention-model Explainability", equations 5 and
  6): the positive part of attention times its gradient, mean over heads, accumulated through the layers.

The first three do not depend on the decision; the last uses the score of the decision. All maps are taken from the row
of the position from which the model computes the decision (`ReadOut`).

This file is for models with one sequence of words and regions; `relevancy_two_streams` is for transformers' LXMERT,
which has two streams.

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
    """The decision for each example.

    Args:
        score (`Tensor`): (B,) float with its graph, the score of the decision, such as the highest logit.
        rows (`Tensor`): (B,) int64, position in the sequence whose last hidden state gives the score.
    """

    score: Tensor
    rows: Tensor


Reader = Callable[[Any, Mapping[str, Any]], ReadOut]


def region_maps(
    model: Any, inputs: Mapping[str, Any], read_out: Reader, maps: Sequence[str] = MAPS
) -> dict[str, Tensor]:
    """
    Computes relevancy maps over the regions of each example.

    Args:
        model (`Any`): a model that returns attention maps (`output_attentions=True`) with the eager back end, which is
            set during the call; its sequence begins with T words and R regions. Or a model with a method `region_maps`
            (`TwoStreamModel`). Dropout must be off.
        inputs (`Mapping[str, Any]`): inputs of the model, with `input_ids` (B, T) and `region_attention_mask` (B, R).
        read_out (`Reader`): (outputs, inputs) -> the decision and its position.
        maps (`Sequence[str]`, *optional*, defaults to `MAPS`): names from `MAPS`.

    Returns:
        `dict[str, Tensor]`: map -> (B, R) float32, at least 0; 0 at masked regions.

    Raises:
        ValueError: if a map is unknown, the model is in training mode or has two streams, or its weights need no
        gradients.
    """
    unknown = [name for name in maps if name not in MAPS]
    if unknown:
        raise ValueError(f"unknown maps {', '.join(unknown)}; expected some of {', '.join(MAPS)}")
    if model.training:
        raise ValueError("the model is in training mode, in which dropout changes its maps; call model.eval() first")
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
    """The map over the whole sequence, (B, N, N)."""
    if name == RELEVANCY:
        return attention_relevancy(attentions, gradients)
    means = [attention.mean(1) for attention in attentions]
    if name == ROLLOUT:
        return attention_rollout(means)[-1]
    return means[-1] if name == RAW_LAST else torch.stack(means).mean(0)


def attention_relevancy(attentions: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """
    Starts with R = I; for each layer R <- R + A R, where A is the mean over heads of the positive part of gradient
    times attention.

    Args:
        attentions (`Sequence[Tensor]`): (B, H, N, N) per layer, from the first.
        gradients (`Sequence[Tensor]`): gradient of the score for each of them.

    Returns:
        `Tensor`: (B, N, N), contribution of each column's input to each row's output.
    """
    first = attentions[0]
    relevancy = torch.eye(first.shape[-1], device=first.device).expand(len(first), -1, -1)
    for attention, gradient in zip(attentions, gradients, strict=True):
        weighted = (gradient.float() * attention.float()).clamp(min=0).mean(1)
        relevancy = relevancy + weighted @ relevancy
    return relevancy


def gradients_of(score: Tensor, attentions: Sequence[Tensor]) -> list[Tensor]:
    """
    The gradients of the scores (B,) with respect to the attention maps.

    Raises:
        ValueError: if the weights of the model need no gradients.
    """
    if not attentions[0].requires_grad:
        raise ValueError("the weights of the model need no gradients; call model.requires_grad_(True) first")
    # Examples of a batch are independent, so the gradient of the sum is the gradient of each score.
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
        raise ValueError(
            f"attention maps have width {attentions[0].shape[-1]}, expected at least {least}, the words and regions"
        )
    return attentions


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
        model.set_attn_implementation(before)

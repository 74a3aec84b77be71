# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reads the attention of phrases on image tokens, for every head, without attention maps.

Shape letters: L layers, H heads, B batch, T text tokens, P phrases, Q query rows, R image tokens.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from grounded_attention.heads.prompts import inputs_on
from grounded_attention.supervision import supervise
from grounded_attention.supervision.attention_function import layer_numbers
from grounded_attention.supervision.method import observed_layers
from grounded_attention.supervision.row_plans import RowPlans
from grounded_attention.supervision.row_states import AttentionPair
from grounded_attention.supervision.score_masks import is_hidden
from grounded_attention.supervision.supervise import unwrap_model

# Attention of one layer: (B, H, P, R).
LayerAttention = Tensor
Reader = Callable[[Mapping[str, Any], str], list[LayerAttention]]


@contextmanager
def read_phrases(model: Any) -> Iterator[Reader]:
    """Sets the supervised attention function, and gives a function that reads the attention of a batch's phrases."""
    inner = unwrap_model(model)
    base = getattr(inner, "base_model", inner)

    @torch.no_grad()
    def read(batch: Mapping[str, Any], words: str) -> list[LayerAttention]:
        device = next(base.parameters()).device
        rows, weights = _query_rows(batch, words)
        columns = batch["region_positions"]
        outputs = base(
            **inputs_on(batch, device),
            attention_queries=((rows.to(device), columns.to(device)),),
            attention_plans=RowPlans(),
            output_attentions=True,
            use_cache=False,
        )
        weights = weights.to(device)
        layers = observed_layers(outputs)
        found = [_mean_of_words(cast(AttentionPair, layer.pairs[0]), weights) for layer in layers]
        width = max(each.shape[1] for each in found)
        found = [pad(each, (0, 0, 0, 0, 0, width - each.shape[1])) for each in found]
        by_layer, empty = dict(zip(layer_numbers(layers), found, strict=True)), torch.zeros_like(found[0])
        return [by_layer.get(layer, empty) for layer in range(inner.config.get_text_config().num_hidden_layers)]

    with supervise(inner):
        yield read


def _query_rows(batch: Mapping[str, Any], words: str) -> tuple[Tensor, Tensor]:
    """The positions of the tokens that ask, (B, Q), and the weight of each for each phrase, (B, P, Q)."""
    mask = batch["phrase_mask"].float()
    if words == "prompt":
        attended = batch["attention_mask"].long()
        ends = (attended * torch.arange(1, attended.shape[1] + 1, device=attended.device)).argmax(1)
        return ends[:, None], torch.ones(*mask.shape[:2], 1)
    if words == "last":
        places = torch.arange(1, mask.shape[2] + 1)
        mask = mask * ((mask * places).argmax(-1, keepdim=True) + 1 == places)
    used = mask.any(0).any(0)
    asking = mask.any(1)[:, used]
    rows = batch["text_positions"][:, used].masked_fill(~asking, -1)
    return rows, (mask / mask.sum(-1, keepdim=True).clamp(min=1))[..., used]


def _mean_of_words(pair: AttentionPair, weights: Tensor) -> LayerAttention:
    log_alpha, log_share = pair[0], cast(Tensor, pair[1])  # the share is reported by default
    attention = (log_alpha + log_share[..., None]).exp()  # (B, H, Q, R)
    # A row that sees no image token has a share of 0 and no defined attention.
    attention = attention.masked_fill(is_hidden(log_alpha), 0.0)
    return torch.einsum("bpq,bhqr->bhpr", weights, attention)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""An attention function that reports query rows over key columns, for any model that takes `grounding_queries`.

It is saved with every checkpoint, and the checkpoint's pipeline reads attention with it. Training uses the function
in `grounded_attention.supervision` instead.

Shape letters: B batch, H heads, N sequence, Q query rows, K key columns, d head width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

# The registered name of the attention function. A name with "flash" in it would make transformers load a kernel.
ATTENTION_QUERY = "sdpa_attention_query"
LOWEST_SCORE = -1e9  # its exponential is 0


def attend_query_rows(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    attention_queries: Sequence[tuple[Tensor, Tensor] | None] = (),
    attention_layers: Sequence[int] | None = None,
    attention_call: Any = None,  # not used
    output_attentions: bool | None = None,  # not passed on: SDPA warns about it
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """SDPA, and the attention of the query rows normalised over the key columns, before dropout."""
    output = ALL_ATTENTION_FUNCTIONS["sdpa"](
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
    )[0]
    first = attention_queries[0] if attention_queries else None
    if first is None or not (attention_layers is None or module.layer_idx in attention_layers):
        return output, None
    rows, columns = first
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    query_rows = _at_positions(query, rows)
    key_columns = _at_positions(key, columns)
    scores = (query_rows * scaling @ key_columns.transpose(2, 3)).float()
    return output, scores.masked_fill((columns < 0)[:, None, None], LOWEST_SCORE).softmax(-1)


def _at_positions(states: Tensor, positions: Tensor) -> Tensor:
    """(B, H, N, d) at (B, Q) -> (B, H, Q, d); padding reads position 0."""
    index = positions.clamp(min=0)[:, None, :, None]
    return states.gather(2, index.expand(-1, states.shape[1], -1, states.shape[3]))


AttentionInterface.register(ATTENTION_QUERY, attend_query_rows)
# A name without a registered mask function gets no mask, and the model would attend to padding.
AttentionMaskInterface.register(ATTENTION_QUERY, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])

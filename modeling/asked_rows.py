# Copyright 2026 The grounded-attention authors. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""An attention function that reports asked rows over asked columns, on any model that takes `grounding_queries`.

It travels with checkpoints, whose pipeline reads attention by it; `attention_supervision` has the one that trains.
Shape letters: B batch, H heads, N sequence, Q asked rows, K asked columns, d head width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

# The attention function that reports asked rows; no name that contains "flash", which transformers takes for a kernel.
ASKED_ROWS = "sdpa_asked_rows"
LOWEST_SCORE = -1e9  # its exponential is 0


def attend_asked_rows(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    attention_queries: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
    attention_layers: Sequence[int] | None = None,
    output_attentions: bool | None = None,  # swallowed: SDPA warns about it
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """
    SDPA, and the attention of asked rows normalised over the asked columns, before dropout.

    Args:
        query, key, value (`torch.Tensor` of shape `(B, H, N, d)`): as for every attention function of transformers.
        attention_queries: pairs of rows `(B, Q)` and columns `(B, K)`, int64 positions, -1 pads; the first counts.
        attention_layers: the layers (`module.layer_idx`) that report; all when not given.

    Returns:
        the output `(B, N, H, d)`, and `(B, H, Q, K)` float32 or, where nothing is asked, `None`.
    """
    output = ALL_ATTENTION_FUNCTIONS["sdpa"](
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
    )[0]
    if not attention_queries or not (attention_layers is None or module.layer_idx in attention_layers):
        return output, None
    rows, columns = attention_queries[0]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    asked = [_at_positions(states, places) for states, places in ((query, rows), (key, columns))]
    scores = (asked[0] * scaling @ asked[1].transpose(2, 3)).float()
    return output, scores.masked_fill((columns < 0)[:, None, None], LOWEST_SCORE).softmax(-1)


def _at_positions(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """(B, H, N, d) at (B, Q) -> (B, H, Q, d); pads read position 0."""
    index = places.clamp(min=0)[:, None, :, None]
    return states.gather(2, index.expand(-1, states.shape[1], -1, states.shape[3]))


AttentionInterface.register(ASKED_ROWS, attend_asked_rows)
# Without a mask function of its own a name gets no mask, and padding would be attended.
AttentionMaskInterface.register(ASKED_ROWS, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])

__all__ = ["ASKED_ROWS", "attend_asked_rows"]

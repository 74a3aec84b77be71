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
"""Computing on the columns that hold something: padding leaves before the linear layers and returns after them.

All valid columns of a batch stand in one row of M columns while linear layers, LayerNorm and activations work on them.
Only the attention itself sees the padded shape, so every back end, and whatever reports its weights, works as ever.

Shape letters: B batch, N columns, M valid columns of the batch, H heads, D hidden, d head width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import BertEncoder, BertSelfAttention, eager_attention_forward


class Packing(NamedTuple):
    """
    Where the valid columns of a batch are.

    Args:
        places (`torch.LongTensor` of shape `(M,)`): their indices in the batch flattened to `(B * N)`, ascending.
        batch_size (`int`): B.
        length (`int`): N.
    """

    places: torch.Tensor
    batch_size: int
    length: int

    def pack(self, states: torch.Tensor) -> torch.Tensor:
        """The valid columns of `(B, N, ...)` as `(1, M, ...)`."""
        return states.flatten(0, 1).index_select(0, self.places)[None]

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """`(1, M, ...)` back in its columns of `(B, N, ...)`; zeros in the others."""
        states = packed.new_zeros(self.batch_size * self.length, *packed.shape[2:])
        return states.index_copy_(0, self.places, packed[0]).unflatten(0, (self.batch_size, self.length))


def find_packing(mask: torch.Tensor | None, wanted: bool = True) -> Packing | None:
    """
    The packing of a mask; `None`, for a padded computation, when nothing is padded or packing is not wanted.

    Args:
        mask (`torch.Tensor` of shape `(B, N)`, *optional*): true or 1 for the valid columns; all when not given.
        wanted (`bool`): a switch for the caller; the mask is not read when it is off.
    """
    if mask is None or not wanted:
        return None
    places = mask.bool().flatten().nonzero().squeeze(1)
    return None if len(places) == mask.numel() else Packing(places, *mask.shape)


def apply_packed(function: Callable[..., torch.Tensor], packing: Packing | None, *states: Any) -> torch.Tensor:
    """
    A function that acts on each column `(B, N, ...)` by itself, computed for the valid ones; zeros in the others.

    Args:
        function: what to compute.
        packing ([`Packing`], *optional*): without one the function gets the states as they are.
        states (`torch.Tensor` of shape `(B, N, ...)`): its arguments.
    """
    if packing is None:
        return function(*states)
    return packing.unpack(function(*(packing.pack(state) for state in states)))


class UnpaddedSelfAttention(BertSelfAttention):
    """BERT's self-attention, which also takes packed states: the padded shape returns for the attention alone."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        past_key_values: Any = None,
        *,
        packing: Packing | None = None,
        **kwargs: Any,
    ) -> Any:
        """
        Attended states in the shape of `hidden_states`, and what the back end returns as weights, in padded shape.

        Args:
            hidden_states (`torch.Tensor` of shape `(B, N, D)`, or `(1, M, D)` with a packing): the states.
            attention_mask: the back end's mask for the padded shape.
            past_key_values: for a decoder; an encoder has none.
            packing ([`Packing`], *optional*): how the states are packed.
        """
        if packing is None:
            return super().forward(hidden_states, attention_mask, past_key_values, **kwargs)
        query, key, value = (
            packing.unpack(layer(hidden_states).unflatten(-1, (self.num_attention_heads, -1))).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )  # (B, H, N, d)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        dropout = self.dropout.p if self.training else 0.0
        attended, weights = attend(
            self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )
        return packing.pack(attended.flatten(2)), weights


class UnpaddedEncoder(BertEncoder):
    """BERT's encoder, same weights, which leaves padding out when it is told where that is."""

    def __init__(self, config):
        super().__init__(config)
        layers: Any = self.layer
        for index, layer in enumerate(layers):
            layer.attention.self = UnpaddedSelfAttention(config, layer_idx=index)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        *args: Any,
        packing: Packing | None = None,
        **kwargs: Any,
    ) -> Any:
        """
        BERT's encoder output; its `last_hidden_state` is zeros at padded columns when there is a packing.

        Args:
            hidden_states (`torch.Tensor` of shape `(B, N, D)`): the embedded sequence.
            attention_mask: the back end's mask.
            packing ([`Packing`], *optional*): the valid columns. Hooks on layers then see packed states `(1, M, D)`.
        """
        encode: Any = super().forward
        if packing is None:
            return encode(hidden_states, attention_mask, *args, **kwargs)
        outputs = encode(packing.pack(hidden_states), attention_mask, *args, packing=packing, **kwargs)
        outputs.last_hidden_state = packing.unpack(outputs.last_hidden_state)
        return outputs


__all__ = ["Packing", "UnpaddedEncoder", "UnpaddedSelfAttention", "apply_packed", "find_packing"]

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Computation without padding: padded columns are removed before the linear layers and added back after them.

Linear layers, LayerNorm and activations compute on one row with all M valid columns of the batch. Only the attention
itself uses the padded shape, so every attention back end, and code that reads its weights, works unchanged.

Shape letters: B batch, N columns, M valid columns of the batch, H heads, D hidden, d head width.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import BertEncoder, BertSelfAttention, eager_attention_forward

_PACKING = "_packing"


class Packing(NamedTuple):
    """
    The positions of the valid columns of a batch.

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
        """The inverse of `pack`: `(1, M, ...)` to `(B, N, ...)`, zeros in padded columns."""
        states = packed.new_zeros(self.batch_size * self.length, *packed.shape[2:])
        return states.index_copy_(0, self.places, packed[0]).unflatten(0, (self.batch_size, self.length))

    def unpack_packed(self, states: torch.Tensor | None) -> torch.Tensor | None:
        """`unpack` of states that are packed; others, and `None`, unchanged."""
        # Padded states have B rows, or more columns than are valid.
        is_packed = states is not None and states.shape[:2] == (1, len(self.places))
        return self.unpack(states) if states is not None and is_packed else states


def find_packing(mask: torch.Tensor | None, wanted: bool = True) -> Packing | None:
    """
    Finds the packing of a mask.

    Args:
        mask (`torch.Tensor` of shape `(B, N)`, *optional*): true or 1 for the valid columns; all when not given.
        wanted (`bool`, *optional*, defaults to `True`): whether to pack; if `False`, the mask is not read.

    Returns:
        [`Packing`], or `None` for a computation with padding: nothing is padded, `wanted` is `False`, or the model is
        being exported.
    """
    # An exported graph has no data-dependent sizes, so it computes with padding. torch 2.6 has no `is_exporting`.
    exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
    if mask is None or not wanted or exporting():
        return None
    places = mask.bool().flatten().nonzero().squeeze(1)
    return None if len(places) == mask.numel() else Packing(places, *mask.shape)


def apply_packed(function: Callable[..., torch.Tensor], packing: Packing | None, *states: Any) -> torch.Tensor:
    """
    Applies a function that is independent for each column to the valid columns only.

    Args:
        function (`Callable`): the function.
        packing ([`Packing`], *optional*): the valid columns. Without it the function gets the unchanged states.
        states (`torch.Tensor` of shape `(B, N, ...)`): arguments of the function.

    Returns:
        `torch.Tensor` of shape `(B, N, ...)`: zeros in padded columns.
    """
    if packing is None:
        return function(*states)
    return packing.unpack(function(*(packing.pack(state) for state in states)))


def unpack_recorded(forward: Callable[..., Any]) -> Callable[..., Any]:
    """
    Decorates a `forward` with `capture_outputs`, whose hooks record what the layers compute: packed states.

    Args:
        forward (`Callable`): returns an output that [`keep_packing`] has seen, with the recorded `hidden_states`.

    Returns:
        `Callable`: the same function; its `hidden_states` have the padded shape, with zeros in padded columns.
    """

    @wraps(forward)
    def wrapper(self: Any, *args: Any, return_dict: bool | None = None, **kwargs: Any) -> Any:
        outputs = forward(self, *args, return_dict=True, **kwargs)
        packing, states = getattr(outputs, _PACKING), outputs.get("hidden_states")
        if packing is not None and states is not None:
            outputs["hidden_states"] = tuple(map(packing.unpack_packed, states))
        wanted = getattr(self.config, "return_dict", True) if return_dict is None else return_dict
        return outputs if wanted else outputs.to_tuple()

    return wrapper


def keep_packing(outputs: Any, packing: Packing | None) -> Any:
    """Tells [`unpack_recorded`] the packing of the layers' states; returns the outputs."""
    setattr(outputs, _PACKING, packing)
    return outputs


class UnpaddedSelfAttention(BertSelfAttention):
    """BERT's self-attention that also takes packed states; it restores the padded shape for the attention only."""

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
        Computes the attention.

        Args:
            hidden_states (`torch.Tensor` of shape `(B, N, D)`, or `(1, M, D)` with a packing): the states.
            attention_mask (*optional*): the back end's mask for the padded shape.
            past_key_values (*optional*): for decoders only.
            packing ([`Packing`], *optional*): the valid columns, if the states are packed.

        Returns:
            `tuple`: states in the shape of `hidden_states`, and the attention weights of the back end in padded shape.
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
    """BERT's encoder with the same weights. It skips padding when `packing` is given."""

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
        Encodes the sequence.

        Args:
            hidden_states (`torch.Tensor` of shape `(B, N, D)`): the embedded sequence.
            attention_mask (*optional*): the back end's mask.
            packing ([`Packing`], *optional*): the valid columns. Hooks on layers then get packed states `(1, M, D)`.

        Returns:
            BERT's encoder output. With a packing, its `last_hidden_state` is zero at padded columns.
        """
        encode: Any = super().forward
        if packing is None:
            return encode(hidden_states, attention_mask, *args, **kwargs)
        outputs = encode(packing.pack(hidden_states), attention_mask, *args, packing=packing, **kwargs)
        outputs.last_hidden_state = packing.unpack(outputs.last_hidden_state)
        return outputs


__all__ = [
    "Packing",
    "UnpaddedEncoder",
    "UnpaddedSelfAttention",
    "apply_packed",
    "find_packing",
    "keep_packing",
    "unpack_recorded",
]

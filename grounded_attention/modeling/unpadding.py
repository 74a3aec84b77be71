# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Computation without padding: padded columns are removed before the linear layers and added back after them.

Linear layers, LayerNorm and activations compute on one row with all M valid columns of the batch. Only the attention
itself uses the padded shape, so every attention back end, and code that reads its weights, works unchanged.

Shape letters: B batch, N columns, M valid columns of the batch, H heads, D hidden, d head width.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import BertLayer
from transformers.pytorch_utils import apply_chunking_to_forward

from ..utils.named_types import Fields

_PACKING = "_packing"


class Packing(NamedTuple):
    """The positions of the valid columns of a batch."""

    places: Tensor  # (M,): their indices in the batch flattened to `(B * N)`, ascending
    batch_size: int  # B
    length: int  # N

    def pack(self, states: Tensor) -> Tensor:
        """The valid columns of `(B, N, ...)` as `(1, M, ...)`."""
        return states.flatten(0, 1).index_select(0, self.places)[None]

    def unpack(self, packed: Tensor) -> Tensor:
        """The inverse of `pack`: `(1, M, ...)` to `(B, N, ...)`, zeros in padded columns."""
        states = packed.new_zeros(self.batch_size * self.length, *packed.shape[2:])
        return states.index_copy_(0, self.places, packed[0]).unflatten(0, (self.batch_size, self.length))

    def unpack_packed(self, states: Tensor | None) -> Tensor | None:
        """`unpack` of states that are packed; others, and `None`, unchanged."""
        # Padded states have B rows, or more columns than are valid.
        is_packed = states is not None and states.shape[:2] == (1, len(self.places))
        if states is not None and is_packed:
            return self.unpack(states)
        return states


def find_packing(mask: Tensor | None, wanted: bool = True) -> Packing | None:
    """Finds the packing of a mask."""
    # An exported graph has no data-dependent sizes, so it computes with padding. torch 2.6 has no `is_exporting`.
    exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
    if mask is None or not wanted or exporting():
        return None
    places = mask.bool().flatten().nonzero().squeeze(1)
    # In a graph both sizes are unknown, so it packs a batch without padding too.
    if not torch.compiler.is_compiling() and len(places) == mask.numel():
        return None
    return Packing(places, *mask.shape)


def apply_packed(function: Callable[..., Tensor], packing: Packing | None, *states: Any) -> Tensor:
    """Applies a function that is independent for each column to the valid columns only."""
    if packing is None:
        return function(*states)
    return packing.unpack(function(*(packing.pack(state) for state in states)))


def unpack_recorded(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a `forward` with `capture_outputs`, whose hooks record what the layers compute: packed states."""

    @wraps(forward)
    def wrapper(self: Any, *args: Any, return_dict: bool | None = None, **kwargs: Any) -> Any:
        outputs = forward(self, *args, return_dict=True, **kwargs)
        packing = getattr(outputs, _PACKING)
        states = outputs.get("hidden_states")
        if packing is not None and states is not None:
            outputs["hidden_states"] = tuple(map(packing.unpack_packed, states))
        wanted = getattr(self.config, "return_dict", True) if return_dict is None else return_dict
        if wanted:
            return outputs
        return outputs.to_tuple()

    return wrapper


def keep_packing(outputs: Any, packing: Packing | None) -> Any:
    """Tells [`unpack_recorded`] the packing of the layers' states; returns the outputs."""
    setattr(outputs, _PACKING, packing)
    return outputs


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention that returns its weights `(B, H, Q, K)`; arguments and context as in [`attend_packed_keys`]."""
    weights = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    weights = (weights if attention_mask is None else weights + attention_mask).softmax(-1)
    weights = nn.functional.dropout(weights, dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    dropout: float,
    query_packing: Packing | None = None,
    key_packing: Packing | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Any]:
    """One attention call with the back end of the configuration."""
    name = module.config._attn_implementation
    supervised = name.startswith("supervised_")  # reads rows at their padded positions
    takes_packed = isinstance(mask, Tensor) and mask.dim() == 2  # FlashAttention and kernels
    if takes_packed and query_packing is not None and query_packing is key_packing and not supervised:
        kwargs |= packed_lengths(mask, mask.shape[1])
        kwargs["cu_seq_lens_q"] = kwargs["cu_seq_lens_k"]
        mask = query_packing = key_packing = None
    heads = []
    for states, packing in ((query, query_packing), (key, key_packing), (value, key_packing)):
        if packing is not None:
            states = packing.unpack(states)
        heads.append(states.unflatten(-1, (module.num_attention_heads, -1)).transpose(1, 2))
    query_heads, key_heads, value_heads = heads
    function = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention_forward)
    # Calls between streams, see `TwoStreams`. A supervised function packs the keys itself, after it has read rows.
    if "cu_seq_lens_k" in kwargs and mask is not None and not supervised:
        function = partial(attend_packed_keys, function)
    context, report = function(
        module,
        query_heads,
        key_heads,
        value_heads,
        mask,
        dropout=dropout if module.training else 0.0,
        scaling=query_heads.shape[-1] ** -0.5,
        **kwargs,
    )
    context = context.flatten(2)
    return context if query_packing is None else query_packing.pack(context), report


def attend_packed_keys(
    function: Any,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """FlashAttention of one stream to the other: the padded keys are removed, the queries stay."""
    batch_size, _, length, _ = query.shape
    lengths = {} if "cu_seq_lens_k" in kwargs else packed_lengths(mask, length)
    packed_query = query.transpose(1, 2).flatten(0, 1)[None].transpose(1, 2)  # (1, H, B * Q, d)
    packed_key = key.transpose(1, 2)[mask.bool()][None].transpose(1, 2)
    packed_value = value.transpose(1, 2)[mask.bool()][None].transpose(1, 2)
    context = function(module, packed_query, packed_key, packed_value, None, **lengths, **kwargs)[0]
    return context.view(batch_size, length, *context.shape[-2:]), None


def packed_lengths(mask: Tensor, length: int) -> Fields:
    """FlashAttention's arguments for rows of `length` queries, and of the keys that the mask (B, K) leaves.

    A row has K keys at most; the length of the longest one would have to be waited for.
    """
    keys = mask.bool().sum(dim=1, dtype=torch.int32)
    counts = {"cu_seq_lens_q": torch.full_like(keys, length), "cu_seq_lens_k": keys}
    starts = {name: nn.functional.pad(each.cumsum(0, dtype=torch.int32), (1, 0)) for name, each in counts.items()}
    return {**starts, "max_length_q": length, "max_length_k": mask.shape[1]}


class StreamAttention(nn.Module):
    """Multi-head attention of one stream to itself or to the other, with BERT's names of weights."""

    is_causal = False
    num_key_value_groups = 1

    def __init__(self, config: Any, layer_idx: int, is_cross_attention: bool = False):
        r"""
        config: sizes `hidden_size`, `num_attention_heads` and `attention_probs_dropout_prob`.
        layer_idx (`int`): number of the layer.
        is_cross_attention (`bool`, *optional*, defaults to `False`): whether keys are those of the other stream.
        """
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_cross_attention = is_cross_attention
        self.num_attention_heads = config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, states: Tensor, others: Tensor, mask: Any = None, **kwargs: Any) -> tuple[Tensor, Any]:
        """Context of `states` from `others`, and the report; see [`attend`]."""
        projected = (self.query(states), self.key(others), self.value(others))
        return attend(self, *projected, mask, self.config.attention_probs_dropout_prob, **kwargs)


class UnpaddedLayer(BertLayer):
    """BERT's layer with the names of its weights, which also takes packed states; calls none of its methods."""

    def __init__(self, config, layer_idx=None):
        super().__init__(config, layer_idx=layer_idx)
        attention: Any = self.attention
        attention.self = StreamAttention(config, layer_idx)

    def forward(
        self, hidden_states: Tensor, attention_mask: Any = None, packing: Packing | None = None, **kwargs: Any
    ) -> Tensor:
        """Computes the layer."""
        packings = {"query_packing": packing, "key_packing": packing}
        context, _ = self.attention.self(hidden_states, hidden_states, attention_mask, **packings, **kwargs)
        attended = self.attention.output(context, hidden_states)
        return apply_chunking_to_forward(self.feed_forward_chunk, self.chunk_size_feed_forward, 1, attended)

    def feed_forward_chunk(self, attended: Tensor) -> Tensor:
        """The feed-forward block; audits replace it with one that needs less memory."""
        return self.output(self.intermediate(attended), attended)


class UnpaddedEncoder(nn.Module):
    """BERT's encoder with the same weights. It skips padding when `packing` is given."""

    def __init__(self, config):
        super().__init__()
        self.layer = nn.ModuleList(UnpaddedLayer(config, index) for index in range(config.num_hidden_layers))

    def forward(
        self, hidden_states: Tensor, attention_mask: Any = None, packing: Packing | None = None, **kwargs: Any
    ) -> Tensor:
        """Encodes the sequence."""
        states = hidden_states if packing is None else packing.pack(hidden_states)
        for layer in self.layer:
            states = layer(states, attention_mask, packing, **kwargs)
        if packing is None:
            return states
        return packing.unpack(states)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The parts of models with two streams, one of text and one of regions, that attend to each other.

An encoder is a sequence of attention calls on a [`TwoStreams`] object, which holds the states, masks and reports. The
layers use BERT's names of weights.

Shape letters: B batch, T text, R regions, Q positions of the queries' stream, K positions of the keys' stream,
M valid positions of a stream in the batch, H heads, D hidden, E width of the regions.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import BertIntermediate, BertOutput, BertSelfOutput
from transformers.models.bert.modeling_bert import eager_attention_forward as eager_attention_forward

from .attention_calls import DIRECTION_STREAMS, REGIONS, TEXT, AttentionCall, layer_names
from .sequence_inputs import check_directions
from .unpadding import Packing, find_packing


class ConfigView:
    """
    A configuration with other values for some fields. The layers of one stream read their sizes from it, and
    everything else, such as the attention back end, from the model's configuration.
    """

    def __init__(self, config: Any, **fields: Any):
        self.__dict__.update(fields, _config=config)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_config":
            raise AttributeError(name)
        return getattr(self._config, name)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Any,
    dropout: float,
    query_packing: Packing | None = None,
    key_packing: Packing | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, Any]:
    """
    One attention call with the back end of the configuration.

    Args:
        module (`nn.Module`): the attention module, with `config` and `num_attention_heads`.
        query (`torch.Tensor` of shape `(B, Q, D)`, or `(1, M, D)` with a packing): projected states.
        key, value (`torch.Tensor` of shape `(B, K, D)`, or `(1, M, D)` with a packing): projected states.
        mask: the back end's mask for the padded shape.
        dropout (`float`): dropout of the attention weights in training.
        query_packing, key_packing ([`Packing`], *optional*): the valid positions, if the states are packed.
        kwargs: further arguments of the attention function.

    Returns:
        `tuple`: the context in the shape of `query`, and the report of the back end: the attention weights
        `(B, H, Q, K)`, what the supervised attention function reports, or `None`.
    """
    heads = [
        (states if packing is None else packing.unpack(states)).unflatten(-1, (module.num_attention_heads, -1))
        for states, packing in ((query, query_packing), (key, key_packing), (value, key_packing))
    ]
    query_heads, key_heads, value_heads = (states.transpose(1, 2) for states in heads)
    name = module.config._attn_implementation
    function = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention_forward)
    if name.startswith("flash") and needs_packed_keys(module, mask):
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


def needs_packed_keys(module: Any, mask: Any) -> bool:
    """Whether FlashAttention would apply the mask (B, K) of the keys' stream to the queries of the other stream."""
    return getattr(module, "is_cross_attention", False) and isinstance(mask, torch.Tensor) and mask.dim() == 2


def attend_packed_keys(
    function: Any,
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """
    FlashAttention of one stream to the other: the padded keys are removed, the queries stay.

    Args:
        function (`Callable`): FlashAttention's function of transformers.
        module (`nn.Module`): the attention module.
        query (`torch.Tensor` of shape `(B, H, Q, d)`): queries.
        key, value (`torch.Tensor` of shape `(B, H, K, d)`): keys and values.
        mask (`torch.Tensor` of shape `(B, K)`): 1 for valid keys, at least one for each row.
        kwargs: further arguments of the function.

    Returns:
        `tuple`: the context `(B, Q, H, d)`, and `None`.
    """
    batch_size, _, length, _ = query.shape
    valid = mask.bool()
    packed_query = query.transpose(1, 2).flatten(0, 1)[None].transpose(1, 2)  # (1, H, B * Q, d)
    packed_key, packed_value = (states.transpose(1, 2)[valid][None].transpose(1, 2) for states in (key, value))
    lengths = valid.sum(dim=1, dtype=torch.int32)
    counts = (torch.full_like(lengths, length), lengths)
    starts = [nn.functional.pad(each.cumsum(0, dtype=torch.int32), (1, 0)) for each in counts]
    context = function(
        module,
        packed_query,
        packed_key,
        packed_value,
        None,
        cu_seq_lens_q=starts[0],
        cu_seq_lens_k=starts[1],
        max_length_q=length,
        max_length_k=int(lengths.max()),
        **kwargs,
    )[0]
    return context.view(batch_size, length, *context.shape[-2:]), None


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
        self.config, self.layer_idx, self.is_cross_attention = config, layer_idx, is_cross_attention
        self.num_attention_heads = config.num_attention_heads
        self.scaling = (config.hidden_size // config.num_attention_heads) ** -0.5
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, states: torch.Tensor, others: torch.Tensor, mask: Any = None, **kwargs: Any
    ) -> tuple[torch.Tensor, Any]:
        """Context of `states` from `others`, and the report; see [`attend`]."""
        projected = (self.query(states), self.key(others), self.value(others))
        return attend(self, *projected, mask, self.config.attention_probs_dropout_prob, **kwargs)


class StreamAttentionBlock(nn.Module):
    """Self-attention, a linear layer, residual connection and LayerNorm: `self` and `output` in checkpoints."""

    attention_class: Any = StreamAttention

    def __init__(self, config: Any, layer_idx: int):
        super().__init__()
        self.self = self.attention_class(config, layer_idx)
        self.output = BertSelfOutput(config)

    def forward(
        self, states: torch.Tensor, mask: Any = None, packing: Packing | None = None, **kwargs: Any
    ) -> tuple[torch.Tensor, Any]:
        """New states, and the report of the attention."""
        context, report = self.self(states, states, mask, query_packing=packing, key_packing=packing, **kwargs)
        return self.output(context, states), report


class StreamLayer(GradientCheckpointingLayer):
    """A BERT layer that returns its states and the report of its attention."""

    block_class: Any = StreamAttentionBlock

    def __init__(self, config: Any, layer_idx: int):
        super().__init__()
        self.attention = self.block_class(config, layer_idx)
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config)

    def forward(
        self, states: torch.Tensor, mask: Any = None, packing: Packing | None = None, **kwargs: Any
    ) -> tuple[torch.Tensor, Any]:
        """
        Computes the layer.

        Args:
            states (`torch.Tensor` of shape `(B, N, D)`, or `(1, M, D)` with a packing): the states.
            mask: the back end's mask for the padded shape.
            packing ([`Packing`], *optional*): the valid positions, if the states are packed.
            kwargs: further arguments of the attention function.
        """
        attended, report = self.attention(states, mask, packing, **kwargs)
        return self.output(self.intermediate(attended), attended), report


class TwoStreams:
    """
    The state of one forward pass through the layers of two streams.

    Args:
        config: the configuration, with `grounding_calls`.
        text (`torch.Tensor` of shape `(B, T, D)`): embedded text.
        regions (`torch.Tensor` of shape `(B, R, E)`): embedded regions, at least one column.
        text_mask (`torch.BoolTensor` of shape `(B, T)`): true for text.
        region_mask (`torch.BoolTensor` of shape `(B, R)`): true for regions. A row without regions reads column 0.
        grounding_queries (`dict`, *optional*): see the `forward` of the models.
        kwargs (`dict`): further arguments of the attention function.

    Raises:
        ValueError: if `grounding_queries` has an unknown direction.
    """

    def __init__(
        self,
        config: Any,
        text: torch.Tensor,
        regions: torch.Tensor,
        text_mask: torch.Tensor,
        region_mask: torch.Tensor,
        grounding_queries: Mapping[str, Any] | None,
        kwargs: Mapping[str, Any],
    ):
        self.config = config
        self.queries = check_directions(grounding_queries or {})
        self.kwargs = dict(kwargs)
        self.records_states = bool(self.kwargs.pop("output_hidden_states", None) or config.output_hidden_states)
        wanted = self.kwargs.pop("output_attentions", None)
        self.records_attention = bool(config.output_attentions if wanted is None else wanted)
        layers = self.kwargs.pop("attention_layers", None)
        names = layer_names(config.grounding_calls)
        self.reporting = set(names if layers is None else [names[layer] for layer in layers])
        visible = {TEXT: text_mask, REGIONS: show_one_column(region_mask)}
        self.packing = {stream: find_packing(mask, config.unpad) for stream, mask in visible.items()}
        embedded = {TEXT: text, REGIONS: regions}
        self.masks = {
            (queries, keys): create_bidirectional_mask(
                config=config,
                inputs_embeds=embedded[queries],
                attention_mask=visible[keys],
                encoder_hidden_states=embedded[keys],
            )
            for queries in embedded
            for keys in embedded
        }
        self.states = {stream: self._pack(stream, states) for stream, states in embedded.items()}
        self.history: dict[str, list[torch.Tensor]] = {stream: [states] for stream, states in embedded.items()}
        self.reports: list[Any] = []

    def _pack(self, stream: str, states: torch.Tensor) -> torch.Tensor:
        packing = self.packing[stream]
        return states if packing is None else packing.pack(states)

    def request(self, call: AttentionCall) -> dict[str, Any]:
        """The arguments that tell the attention function what a call reports."""
        request = dict(self.kwargs)
        if self.queries or self.kwargs.get("attention_mean"):
            request["attention_call"] = call
        if call.directions and self.queries and call.name in self.reporting:
            request["attention_queries"] = tuple(
                self.queries[name] if name in call.directions else None
                for name in DIRECTION_STREAMS
                if name in self.queries
            )
        return request

    def run_layer(self, layer: nn.Module, call: AttentionCall, **kwargs: Any) -> None:
        """Runs a layer of one stream, whose self-attention is `call`."""
        stream = call.query_stream
        mask, packing = self.masks[stream, stream], self.packing[stream]
        states, report = layer(self.states[stream], mask, packing, **self.request(call), **kwargs)
        self.update({stream: states}, [report])

    def run_cross(self, layer: nn.Module, calls: Sequence[AttentionCall]) -> None:
        """
        Runs a layer in which both streams attend to each other; `calls` are its attention calls. The layer gets the
        states of text and regions, and by name `masks`, `packing` and `requests`, a dictionary (query stream, key
        stream) -> arguments of the attention function. It returns the new states and the reports of the calls.
        """
        requests = {(call.query_stream, call.key_stream): self.request(call) for call in calls}
        text, regions, reports = layer(
            self.states[TEXT], self.states[REGIONS], masks=self.masks, packing=self.packing, requests=requests
        )
        self.update({TEXT: text, REGIONS: regions}, reports)

    def update(self, states: Mapping[str, torch.Tensor], reports: Sequence[Any]) -> None:
        """Replaces the states of streams and adds the reports of calls."""
        self.states.update(states)
        self.reports += [report for report in reports if report is not None]
        if self.records_states:
            for stream in states:
                self.history[stream].append(self.unpacked(stream))

    def unpacked(self, stream: str) -> torch.Tensor:
        """The states of a stream in the padded shape."""
        packing = self.packing[stream]
        return self.states[stream] if packing is None else packing.unpack(self.states[stream])

    @property
    def hidden_states(self) -> tuple[torch.Tensor, ...] | None:
        """States of the text after the embeddings and each layer, if they are recorded."""
        return tuple(self.history[TEXT]) if self.records_states else None

    @property
    def region_hidden_states(self) -> tuple[torch.Tensor, ...] | None:
        """States of the regions after the embeddings and each layer, if they are recorded."""
        return tuple(self.history[REGIONS]) if self.records_states else None

    @property
    def attentions(self) -> tuple[Any, ...] | None:
        """The reports of the attention calls in the order of execution, if they are recorded."""
        return tuple(self.reports) if self.records_attention else None


def show_one_column(mask: torch.Tensor) -> torch.Tensor:
    """The mask (B, R), with column 0 visible in rows where none is: attention to nothing is not defined."""
    empty = ~mask.any(dim=1, keepdim=True)
    first = torch.zeros_like(mask)
    first[:, 0] = True
    return mask | (empty & first)


def cross_calls(number: int, num_heads: int) -> tuple[AttentionCall, AttentionCall]:
    """The two directions of co-attention `number`; both read the same states."""
    name = f"cross {number}"
    first, second = DIRECTION_STREAMS.values()
    return AttentionCall(name, *first, num_heads), AttentionCall(name, *second, num_heads)


__all__ = [
    "ConfigView",
    "StreamAttention",
    "StreamAttentionBlock",
    "StreamLayer",
    "TwoStreams",
    "attend",
    "attend_packed_keys",
    "cross_calls",
    "needs_packed_keys",
    "show_one_column",
]

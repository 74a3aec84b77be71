# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The parts of models with two streams, one of text and one of regions, that attend to each other.

An encoder is a sequence of attention calls on a [`TwoStreams`] object, which holds the states, masks and reports. The
layers use BERT's names of weights.

Shape letters: B batch, T text, R regions, Q positions of the queries' stream, K positions of the keys' stream,
M valid positions of a stream in the batch, H heads, D hidden, E width of the regions.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.bert.modeling_bert import BertIntermediate, BertOutput, BertSelfOutput

from ..utils.named_types import Columns, Fields
from .attention_calls import DIRECTION_STREAMS, REGIONS, TEXT, AttentionCall, layer_names
from .sequence_inputs import check_directions, check_shape
from .unpadding import Packing, StreamAttention, find_packing, packed_lengths
from .unpadding import attend_packed_keys as attend_packed_keys


class ConfigView:
    """A configuration, or another object, with other values for some fields."""

    def __init__(self, config: Any, /, **fields: Any):
        self.__dict__.update(fields, _config=config)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_config":
            raise AttributeError(name)
        return getattr(self._config, name)


class StreamAttentionBlock(nn.Module):
    """Self-attention, a linear layer, residual connection and LayerNorm: `self` and `output` in checkpoints."""

    attention_class: Any = StreamAttention

    def __init__(self, config: Any, layer_idx: int):
        super().__init__()
        self.self = self.attention_class(config, layer_idx)
        self.output = BertSelfOutput(config)

    def forward(
        self, states: Tensor, mask: Any = None, packing: Packing | None = None, **kwargs: Any
    ) -> tuple[Tensor, Any]:
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
        self, states: Tensor, mask: Any = None, packing: Packing | None = None, **kwargs: Any
    ) -> tuple[Tensor, Any]:
        """Computes the layer."""
        attended, report = self.attention(states, mask, packing, **kwargs)
        return self.output(self.intermediate(attended), attended), report


class TwoStreams:
    """The state of one forward pass through the layers of two streams.

    `text` (B, T, D) and `regions` (B, R, E), at least one column, are embedded. Masks are true for text and regions; a
    row without regions reads column 0. `kwargs` are further arguments of the attention function.
    """

    def __init__(
        self,
        config: Any,
        text: Tensor,
        regions: Tensor,
        text_mask: Tensor,
        region_mask: Tensor,
        grounding_queries: Columns | None,
        kwargs: Columns,
    ):
        self.config = config
        self.kwargs = dict(kwargs)
        # The positions in a stream are the indices of its tokens or regions.
        positions = self.kwargs.pop("attention_queries", None)
        self.queries = check_directions(grounding_queries or positions or {})
        self.records_states = bool(self.kwargs.pop("output_hidden_states", None) or config.output_hidden_states)
        wanted = self.kwargs.pop("output_attentions", None)
        self.records_attention = bool(config.output_attentions if wanted is None else wanted)
        layers = self.kwargs.pop("attention_layers", None)
        names = layer_names(config.grounding_calls)
        self.reporting = set(names if layers is None else [names[layer] for layer in layers])
        visible = {TEXT: text_mask, REGIONS: show_one_column(region_mask)}
        self.packing = {stream: find_packing(mask, config.unpad) for stream, mask in visible.items()}
        embedded = {TEXT: text, REGIONS: regions}
        self.masks = {}
        # Of both directions, for all layers: FlashAttention's own masks are of the queries' stream.
        self.lengths = {}
        for queries, keys in product(embedded, embedded):
            mask = create_bidirectional_mask(
                config=config,
                inputs_embeds=embedded[queries],
                attention_mask=visible[keys],
                encoder_hidden_states=embedded[keys],
            )
            self.masks[queries, keys] = mask
            if queries != keys and isinstance(mask, Tensor) and mask.dim() == 2:
                self.lengths[queries, keys] = packed_lengths(mask, embedded[queries].shape[1])
        self.states = {stream: self._pack(stream, states) for stream, states in embedded.items()}
        self.history: dict[str, list[Tensor]] = {stream: [states] for stream, states in embedded.items()}
        self.reports: list[Any] = []

    def _pack(self, stream: str, states: Tensor) -> Tensor:
        packing = self.packing[stream]
        if packing is None:
            return states
        return packing.pack(states)

    def request(self, call: AttentionCall) -> Fields:
        """The arguments that tell the attention function what a call reports."""
        request = {**self.kwargs, **self.lengths.get((call.query_stream, call.key_stream), {})}
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
        mask = self.masks[stream, stream]
        packing = self.packing[stream]
        states, report = layer(self.states[stream], mask, packing, **self.request(call), **kwargs)
        self.update({stream: states}, [report])

    def run_cross(self, layer: nn.Module, calls: Sequence[AttentionCall]) -> None:
        """Runs a layer in which both streams attend to each other; `calls` are its attention calls. The layer gets the
        states of text and regions, and by name `masks`, `packing` and `requests`, a dictionary (query stream, key
        stream) -> arguments of the attention function. It returns the new states and the reports of the calls.
        """
        requests = {(call.query_stream, call.key_stream): self.request(call) for call in calls}
        text, regions, reports = layer(
            self.states[TEXT], self.states[REGIONS], masks=self.masks, packing=self.packing, requests=requests
        )
        self.update({TEXT: text, REGIONS: regions}, reports)

    def update(self, states: Mapping[str, Tensor], reports: Sequence[Any]) -> None:
        """Replaces the states of streams and adds the reports of calls."""
        self.states.update(states)
        self.reports += [report for report in reports if report is not None]
        if self.records_states:
            for stream in states:
                self.history[stream].append(self.unpacked(stream))

    def unpacked(self, stream: str) -> Tensor:
        """The states of a stream in the padded shape."""
        packing = self.packing[stream]
        if packing is None:
            return self.states[stream]
        return packing.unpack(self.states[stream])

    @property
    def hidden_states(self) -> tuple[Tensor, ...] | None:
        """States of the text after the embeddings and each layer, if they are recorded."""
        if self.records_states:
            return tuple(self.history[TEXT])
        return None

    @property
    def region_hidden_states(self) -> tuple[Tensor, ...] | None:
        """States of the regions after the embeddings and each layer, if they are recorded."""
        if self.records_states:
            return tuple(self.history[REGIONS])
        return None

    @property
    def attentions(self) -> tuple[Any, ...] | None:
        """The reports of the attention calls in the order of execution, if they are recorded."""
        if self.records_attention:
            return tuple(self.reports)
        return None


def show_one_column(mask: Tensor) -> Tensor:
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


class RegionInputs(NamedTuple):
    """What the regions' stream embeds."""

    features: Tensor  # (B, R, F): at least one column
    boxes: Tensor  # (B, R, 4): corners in [0, 1]
    mask: Tensor  # (B, R): true for regions


def take_region_inputs(
    region_features: Tensor | None,
    region_boxes: Tensor | None,
    region_attention_mask: Tensor | None,
    inputs_embeds: Tensor,
    width: int,
) -> RegionInputs:
    """The checked region inputs. Without regions there is one column of zeros, which the mask hides."""
    if region_features is None or region_boxes is None or region_features.shape[1] == 0:
        batch_size = len(inputs_embeds)
        features = inputs_embeds.new_zeros(batch_size, 1, width)
        boxes = inputs_embeds.new_zeros(batch_size, 1, 4)
        return RegionInputs(features, boxes, torch.zeros_like(features[..., 0], dtype=torch.bool))
    mask = torch.ones_like(region_features[..., 0], dtype=torch.bool)
    if region_attention_mask is not None:
        mask = region_attention_mask.bool()
    return RegionInputs(region_features, region_boxes, mask)


def locate_boxes(boxes: Tensor, numbers: int) -> Tensor:
    """The location (B, R, numbers) of boxes (B, R, 4): their corners and, for 5 numbers, their area."""
    if numbers == 4:
        return boxes
    left, top, right, bottom = boxes.unbind(-1)
    return torch.stack([left, top, right, bottom, (right - left) * (bottom - top)], dim=-1)


def hide_regions(region_features: Tensor | None, masked_regions: Tensor | None) -> Tensor | None:
    """Region features (B, R, F) with zeros for masked regions (B, R), as in the public code of ViLBERT and LXMERT."""
    if region_features is None or masked_regions is None:
        return region_features
    check_shape("masked_regions", masked_regions, tuple(region_features.shape[:2]))
    return region_features.masked_fill(masked_regions.bool()[..., None], 0.0)

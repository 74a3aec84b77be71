# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Relevancy maps for transformers' LXMERT, which has a word stream and a region stream with cross-attention.

Chefer, Gur and Wolf (2021), "Generic Attention-model Explainability", section 3: four relevancies, of words for words,
regions for regions, regions for words (`text_region`) and words for regions. Each attention updates them with
equations 5 to 11. Raw attention is that of the cross layers from words to regions; rollout is not defined here.

Shape letters: B batch, H heads, T text, R regions, S query stream, Q key stream.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .relevancy import RAW_LAST, RAW_MEAN, RELEVANCY, Reader, gradients_of

TWO_STREAM_MAPS = (RAW_LAST, RAW_MEAN, RELEVANCY)
TEXT, REGIONS = "text", "regions"


@dataclass(frozen=True, eq=False)
class StreamAttention:
    """
    The attention of one call of a module.

    Args:
        query_stream (`str`): "text" or "regions", the stream of the query rows.
        key_stream (`str`): "text" or "regions", the stream of the key columns.
        map (`Tensor`): (B, H, S, Q) attention.
    """

    query_stream: str
    key_stream: str
    map: Tensor


class TwoStreamModel:
    """LXMERT with the input names of this project's processors, for `region_maps` and `perturb`.

    Args:
        model (`Any`): transformers' `LxmertModel` or one of its task models.

    Raises:
        ValueError: if the model is not LXMERT.
    """

    def __init__(self, model: Any):
        if getattr(getattr(model, "config", None), "model_type", None) != "lxmert":
            raise ValueError(f"{type(model).__name__} is not supported, expected transformers' LXMERT")
        self.model, self.config = model, model.config

    @property
    def training(self) -> bool:
        """Whether dropout is on."""
        return self.model.training

    def eval(self) -> "TwoStreamModel":
        """Turns dropout off."""
        self.model.eval()
        return self

    def __call__(self, **inputs: Any) -> Any:
        names = ("input_ids", "attention_mask", "token_type_ids")
        return self.model(
            **{name: inputs[name] for name in names if name in inputs},
            visual_feats=inputs["region_features"],
            visual_pos=inputs["region_boxes"],
            visual_attention_mask=inputs["region_attention_mask"],
        )

    def region_maps(
        self, inputs: Mapping[str, Any], read_out: Reader, maps: Sequence[str] = TWO_STREAM_MAPS
    ) -> dict[str, Tensor]:
        """Like `relevancy.region_maps`, for `TWO_STREAM_MAPS`; `rows` of the read-out are word positions."""
        unknown = [name for name in maps if name not in TWO_STREAM_MAPS]
        if unknown:
            raise ValueError(
                f"maps {', '.join(unknown)} do not exist for two streams; expected {', '.join(TWO_STREAM_MAPS)}"
            )
        with torch.enable_grad(), self._recording() as recorded:
            decided = read_out(self(**inputs), inputs)
            attentions = [each.map for each in recorded]
            gradients = gradients_of(decided.score, attentions) if RELEVANCY in maps else []
        with torch.no_grad():
            rows = torch.arange(len(decided.rows), device=decided.rows.device), decided.rows
            attended = inputs["region_attention_mask"].bool()
            return {name: _map(name, recorded, gradients)[rows] * attended for name in maps}

    @contextmanager
    def _recording(self) -> Iterator[list[StreamAttention]]:
        """Records the attention of every module in the order of the calls, with its graph, at its dropout layer."""
        recorded: list[StreamAttention] = []
        with ExitStack() as stack:
            for module, pairs in self._modules():
                calls = iter(pairs)

                def record(dropout: Any, args: Any, output: Tensor, calls: Iterator[tuple[str, str]] = calls) -> None:
                    query_stream, key_stream = next(calls)
                    recorded.append(StreamAttention(query_stream, key_stream, output))

                stack.callback(module.dropout.register_forward_hook(record).remove)
            yield recorded

    def _modules(self) -> Iterator[tuple[Any, Sequence[tuple[str, str]]]]:
        """Yields attention modules, with (query stream, key stream) of each of their calls."""
        encoder = self.model.base_model.encoder
        for layers, stream in ((encoder.layer, TEXT), (encoder.r_layers, REGIONS)):
            yield from ((layer.attention.self, [(stream, stream)]) for layer in layers)
        for layer in encoder.x_layers:
            # One module computes both directions; the call for words comes first.
            yield layer.visual_attention.att, [(TEXT, REGIONS), (REGIONS, TEXT)]
            yield layer.lang_self_att.self, [(TEXT, TEXT)]
            yield layer.visn_self_att.self, [(REGIONS, REGIONS)]


def _map(name: str, recorded: Sequence[StreamAttention], gradients: Sequence[Tensor]) -> Tensor:
    """The map from words to regions, (B, T, R)."""
    if name == RELEVANCY:
        return two_stream_relevancy(recorded, gradients)
    cross = [each.map.float().mean(1) for each in recorded if (each.query_stream, each.key_stream) == (TEXT, REGIONS)]
    return cross[-1] if name == RAW_LAST else torch.stack(cross).mean(0)


def two_stream_relevancy(recorded: Sequence[StreamAttention], gradients: Sequence[Tensor]) -> Tensor:
    """
    The contribution of each region to the last hidden state of each word.

    Args:
        recorded (`Sequence[StreamAttention]`): attention in the order of the calls; in a cross layer the words come
            before the regions.
        gradients (`Sequence[Tensor]`): gradient of the score for each of them.

    Returns:
        `Tensor`: (B, T, R) relevancy.
    """
    widths = {each.query_stream: each.map.shape[2] for each in recorded}
    first = recorded[0].map
    state = {
        (a, b): (torch.eye(widths[a]) if a == b else torch.zeros(widths[a], widths[b])).to(first.device)
        for a in widths
        for b in widths
    }
    state = {key: value.expand(len(first), -1, -1) for key, value in state.items()}
    before = state
    for each, gradient in zip(recorded, gradients, strict=True):
        weighted = (gradient.float() * each.map.detach().float()).clamp(min=0).mean(1)
        # Both directions of a cross layer read the same states, so the second uses the relevancies before the first.
        if (each.query_stream, each.key_stream) != (REGIONS, TEXT):
            before = state
        state = {**state, **_changed(each.query_stream, each.key_stream, weighted, before, state)}
    return state[TEXT, REGIONS]


def _changed(
    query: str, key: str, weighted: Tensor, before: Mapping[tuple[str, str], Tensor], state: Mapping
) -> dict[tuple[str, str], Tensor]:
    """The relevancies that one attention changes: the current ones plus its part, computed from those `before`."""
    if query == key:
        return {(query, other): state[query, other] + weighted @ before[query, other] for other in (TEXT, REGIONS)}
    through = _normalised(before[query, query]).transpose(1, 2) @ weighted @ _normalised(before[key, key])
    return {
        (query, key): state[query, key] + through,
        (query, query): state[query, query] + weighted @ before[key, query],
    }


def _normalised(relevancy: Tensor) -> Tensor:
    """Equations 8 and 9: normalises the rows of R - I to sum 1, and adds I."""
    identity = torch.eye(relevancy.shape[-1], device=relevancy.device)
    added = relevancy - identity
    return added / added.sum(-1, keepdim=True).clamp(min=torch.finfo(added.dtype).tiny) + identity

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Maps of relevance for transformers' LXMERT, where words and regions are two streams that look at each other.

Chefer, Gur and Wolf (2021), "Generic Attention-model Explainability", section 3: four relevancies, of words for words,
regions for regions, regions for words (`text_region`) and words for regions, each changed by each attention as
equations 5 to 11 say. Raw attention is that of the cross layers from words to regions; rollout has no meaning here.

Shape letters: B batch, H heads, T text, R regions, S and Q the streams that ask and that are asked.
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
    """Attention of one module: which stream asks, which is asked, and the map (B, H, S, Q)."""

    asks: str
    asked: str
    map: Tensor


class TwoStreamModel:
    """LXMERT as `region_maps` and `perturb` call a model: with the names of this project's processors.

    Args:
        model (`Any`): transformers' `LxmertModel` or one of its heads.

    Raises:
        ValueError: another model.
    """

    def __init__(self, model: Any):
        if getattr(getattr(model, "config", None), "model_type", None) != "lxmert":
            raise ValueError(
                f"{type(model).__name__} is not transformers' LXMERT, the one two-stream model known here"
            )
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
        """As `relevancy.region_maps`, of `TWO_STREAM_MAPS`; `rows` of the read-out are words."""
        unknown = [name for name in maps if name not in TWO_STREAM_MAPS]
        if unknown:
            raise ValueError(f"maps {', '.join(unknown)}: not for two streams; known: {', '.join(TWO_STREAM_MAPS)}")
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
        """The attention of every module in the order of the calls, with its graph; taken where its dropout is."""
        recorded: list[StreamAttention] = []
        with ExitStack() as stack:
            for module, pairs in self._modules():
                calls = iter(pairs)

                def record(dropout: Any, args: Any, output: Tensor, calls: Iterator[tuple[str, str]] = calls) -> None:
                    asks, asked = next(calls)
                    recorded.append(StreamAttention(asks, asked, output))

                stack.callback(module.dropout.register_forward_hook(record).remove)
            yield recorded

    def _modules(self) -> Iterator[tuple[Any, Sequence[tuple[str, str]]]]:
        """Attention modules, with the streams of each of their calls."""
        encoder = self.model.base_model.encoder
        for layers, stream in ((encoder.layer, TEXT), (encoder.r_layers, REGIONS)):
            yield from ((layer.attention.self, [(stream, stream)]) for layer in layers)
        for layer in encoder.x_layers:
            # One module for both directions, the words' call first.
            yield layer.visual_attention.att, [(TEXT, REGIONS), (REGIONS, TEXT)]
            yield layer.lang_self_att.self, [(TEXT, TEXT)]
            yield layer.visn_self_att.self, [(REGIONS, REGIONS)]


def _map(name: str, recorded: Sequence[StreamAttention], gradients: Sequence[Tensor]) -> Tensor:
    """(B, T, R)."""
    if name == RELEVANCY:
        return two_stream_relevancy(recorded, gradients)
    cross = [each.map.float().mean(1) for each in recorded if (each.asks, each.asked) == (TEXT, REGIONS)]
    return cross[-1] if name == RAW_LAST else torch.stack(cross).mean(0)


def two_stream_relevancy(recorded: Sequence[StreamAttention], gradients: Sequence[Tensor]) -> Tensor:
    """
    How much each region counts for each word's last state.

    Args:
        recorded (`Sequence[StreamAttention]`): attention in the order of the calls; of a cross layer the words' before
            the regions'.
        gradients (`Sequence[Tensor]`): of the score with respect to each.

    Returns:
        `Tensor`: (B, T, R).
    """
    widths = {each.asks: each.map.shape[2] for each in recorded}
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
        # The two directions of a cross layer see the same streams: the second one what was before the first.
        if (each.asks, each.asked) != (REGIONS, TEXT):
            before = state
        state = {**state, **_changed(each.asks, each.asked, weighted, before, state)}
    return state[TEXT, REGIONS]


def _changed(
    asks: str, asked: str, weighted: Tensor, before: Mapping[tuple[str, str], Tensor], state: Mapping
) -> dict[tuple[str, str], Tensor]:
    """The relevancies that an attention changes: its part, from those `before`, on top of the present ones."""
    if asks == asked:
        return {(asks, other): state[asks, other] + weighted @ before[asks, other] for other in (TEXT, REGIONS)}
    through = _normalised(before[asks, asks]).transpose(1, 2) @ weighted @ _normalised(before[asked, asked])
    return {
        (asks, asked): state[asks, asked] + through,
        (asks, asks): state[asks, asks] + weighted @ before[asked, asks],
    }


def _normalised(relevancy: Tensor) -> Tensor:
    """Equations 8 and 9: what came on top of the identity, its rows summing to 1, and the identity."""
    identity = torch.eye(relevancy.shape[-1], device=relevancy.device)
    added = relevancy - identity
    return added / added.sum(-1, keepdim=True).clamp(min=torch.finfo(added.dtype).tiny) + identity

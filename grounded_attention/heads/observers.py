# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Observers read the attention of each kind of model; all other code uses an observer.

Models on transformers' attention interface report the query rows through the attention function, with any back end.
transformers' VisualBERT and LXMERT compute full maps: hooks take the query rows from the map of one layer and release
it, so only one map exists at a time.

A query selects key columns. An audit never selects the whole-image region and END (`region_candidate_mask` excludes
them). Shape letters: L layers, B batch, H heads, T text, R regions, N sequence, Q query rows, K key columns.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from grounded_attention.heads.feed_forward import feed_forward_in_parts
from grounded_attention.modeling.attention_calls import layer_labels
from grounded_attention.modeling.sequence_inputs import UNREAD_INPUTS, shift_indices
from grounded_attention.supervision import DIRECTIONS, from_attention_maps, supervise
from grounded_attention.supervision.alignment import locate_indices
from grounded_attention.supervision.method import observed_layers
from grounded_attention.supervision.row_plans import RowPlans
from grounded_attention.supervision.row_states import AttentionPair
from grounded_attention.supervision.supervise import unwrap_model

Batch = Mapping[str, Any]
Queries = Mapping[str, tuple[Tensor, Tensor]]

_POSITIONS = ("text_positions", "region_positions")


class Observer(ABC):
    """Reads the attention of chosen words and regions from one model."""

    model: Any
    layers: tuple[str, ...]
    heads: int

    @abstractmethod
    def observe(self, batch: Batch, queries: Queries) -> dict[str, AttentionPair]:
        """Runs the model, without gradients."""


# On the attention interface


class InterfaceObserver(Observer):
    """Observes any model on transformers' attention interface.

    During an observation the model uses the supervised version of its attention back end, which computes the same
    output. The batch contains the positions of words and regions in the sequence of the model: `text_positions` (B, T)
    and `region_positions` (B, R), int64.
    """

    def __init__(self, model: Any):
        model = unwrap_model(model)
        self.model = getattr(model, "base_model", model)
        try:
            with supervise(model) as supervision:
                calls = supervision.calls
        except ValueError as error:
            raise ValueError(
                f"{error}; for the same reason {type(model).__name__} cannot be audited. Model types that can be "
                f"audited without the interface: {', '.join(_HOOKED)}"
            ) from error
        self.layers = tuple(layer_labels(calls))
        self.heads = min((call.num_heads for call in calls), default=0)

    @torch.no_grad()
    def observe(self, batch: Batch, queries: Queries) -> dict[str, AttentionPair]:
        directions = [name for name in DIRECTIONS if name in queries]
        arguments = self.query_arguments(batch, {name: queries[name] for name in directions})
        wanted = {"attention_plans": RowPlans(), "output_attentions": True, "return_dict": True}
        with supervise(self.model):
            outputs = self.model(**self.inputs(batch), **arguments, **wanted)
        layers = observed_layers(outputs)
        pairs = [[layer.pairs[i] for layer in layers] for i in range(len(directions))]
        return {
            name: _stack([pair for pair in found if pair is not None])
            for name, found in zip(directions, pairs, strict=True)
        }

    def query_arguments(self, batch: Batch, queries: Queries) -> dict[str, Any]:
        """The keyword arguments that make the model report these rows."""
        missing = [name for name in _POSITIONS if batch.get(name) is None]
        if missing:
            raise ValueError(
                f"{type(self.model).__name__}: the batch has no {', '.join(missing)}: give the position of each token "
                "and region in the sequence of the model"
            )
        places = dict(zip(DIRECTIONS, ([batch[name] for name in order] for order in _ORDERS), strict=True))
        located = [tuple(map(locate_indices, queries[name], places[name])) for name in queries]
        return {"attention_queries": tuple(located)}

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """The entries of a batch that are inputs of the model."""
        return {name: value for name, value in batch.items() if name not in (*UNREAD_INPUTS, *_POSITIONS)}


def reads_pixels(model: Any) -> bool:
    """Whether the model computes region features from images."""
    return getattr(model.config, "vision_config", None) is not None


_ORDERS = (_POSITIONS, _POSITIONS[::-1])


def _stack(pairs: Sequence[AttentionPair]) -> AttentionPair:
    alphas, shares = zip(*pairs, strict=True)
    return torch.stack(alphas), torch.stack(shares)


class FamilyObserver(InterfaceObserver):
    """Observes the models of this project, which find the positions of tokens and regions themselves."""

    def __init__(self, model: Any):
        super().__init__(model)
        self._known = frozenset(inspect.signature(self.model.forward).parameters)

    def observe(self, batch: Batch, queries: Queries) -> dict[str, AttentionPair]:
        with feed_forward_in_parts(self.model):
            return super().observe(batch, queries)

    def query_arguments(self, batch: Batch, queries: Queries) -> dict[str, Any]:
        return {"grounding_queries": dict(queries)}

    def inputs(self, batch: Batch) -> dict[str, Any]:
        return {name: value for name, value in batch.items() if name in self._known and name != "grounding_queries"}


# By hooks


@contextmanager
def _reading(module: nn.Module, take: Callable[[int, Tensor], None]) -> Iterator[None]:
    """
    Calls `take` with the number of each call of an attention module and its map (B, H, N, M), then drops the map.
    """
    calls = 0

    def request_map(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        given = inspect.signature(module.forward).bind(*args, **kwargs)
        given.arguments["output_attentions"] = True
        return given.args, given.kwargs

    def reduce(module: nn.Module, args: Any, kwargs: Any, outputs: tuple) -> tuple:
        nonlocal calls
        take(calls, outputs[1])
        calls += 1
        return outputs[:1]

    handles = [
        module.register_forward_pre_hook(request_map, with_kwargs=True),
        module.register_forward_hook(reduce, with_kwargs=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class VisualBertObserver(Observer):
    """Observes transformers' `VisualBertModel` and its task models: sequence [text T][regions R].

    Regions have the visual token type 0, as in the original code, unless the batch has `region_token_type_ids`.
    """

    def __init__(self, model: Any):
        self.model = model.base_model
        self.layers = tuple(str(layer) for layer in range(model.config.num_hidden_layers))
        self.heads = model.config.num_attention_heads

    @torch.no_grad()
    def observe(self, batch: Batch, queries: Queries) -> dict[str, AttentionPair]:
        text = batch["input_ids"].shape[1]
        starts = {"text_to_region": (0, text), "region_to_text": (text, 0)}
        placed = {name: tuple(map(shift_indices, queries[name], starts[name])) for name in queries}
        read: dict[str, list[AttentionPair]] = {name: [] for name in queries}

        def take(call: int, maps: Tensor) -> None:
            for name, (rows, columns) in placed.items():
                read[name].append(from_attention_maps(maps, rows, columns))

        with ExitStack() as stack:
            for layer in self.model.encoder.layer:
                stack.enter_context(_reading(layer.attention.self, take))
            self.model(**self.inputs(batch), output_attentions=False)
        return {name: _stack(pairs) for name, pairs in read.items()}

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """The inputs of the model, with its names."""
        mask = batch["region_attention_mask"]
        types = batch.get("region_token_type_ids")
        return {
            **_text_inputs(batch),
            "visual_embeds": batch["region_features"],
            "visual_attention_mask": mask,
            "visual_token_type_ids": torch.zeros_like(mask, dtype=torch.long) if types is None else types,
            "image_text_alignment": batch.get("image_text_alignment"),
        }


class LxmertObserver(Observer):
    """Observes transformers' `LxmertModel` and its task models: the cross-attention of each cross layer, in both
    directions.

    transformers returns only the attention from words to regions, so hooks read both directions. Padded regions are
    masked; the original code always has 36 regions and needs no mask.
    """

    def __init__(self, model: Any):
        self.model = model.base_model
        self.layers = tuple(f"cross {layer}" for layer in range(model.config.x_layers))
        self.heads = model.config.num_attention_heads

    @torch.no_grad()
    def observe(self, batch: Batch, queries: Queries) -> dict[str, AttentionPair]:
        read: dict[str, list[AttentionPair]] = {name: [] for name in queries}

        def take(call: int, maps: Tensor) -> None:  # one module per layer is called for words, then for regions
            name = DIRECTIONS[call]
            if name in queries:
                read[name].append(from_attention_maps(maps, *queries[name]))

        with ExitStack() as stack:
            for layer in self.model.encoder.x_layers:
                stack.enter_context(_reading(layer.visual_attention.att, take))
            self.model(**self.inputs(batch), output_attentions=False)
        return {name: _stack(pairs) for name, pairs in read.items()}

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """The inputs of the model, with its names."""
        return {
            **_text_inputs(batch),
            "visual_feats": batch["region_features"],
            "visual_pos": batch["region_boxes"],
            "visual_attention_mask": batch["region_attention_mask"],
        }


def _text_inputs(batch: Batch) -> dict[str, Any]:
    return {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in batch}


# Model type -> observer, for models that are not on the attention interface.
_HOOKED: dict[str, Callable[[Any], Observer]] = {"visual_bert": VisualBertObserver, "lxmert": LxmertObserver}


def get_observer(model: Any) -> Observer:
    """
    Makes the observer of a model.
    """
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind is None:
        raise ValueError(f"{type(model).__name__} is not a model of transformers, so its attention cannot be audited")
    # The contract of a family: its config lists the attention calls, and its models accept `grounding_queries`.
    known = FamilyObserver if hasattr(model.config, "grounding_calls") else InterfaceObserver
    return _HOOKED.get(kind, known)(model)

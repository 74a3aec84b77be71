# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How the attention of each kind of model is read: everything else asks an observer.

Models on transformers' attention interface report the asked rows through the attention function, under any back end.
transformers' VisualBERT and LXMERT compute maps of their own: hooks take the asked rows out of one layer's map and let
the map go, so that no more than one exists at a time.

Columns are what a query asks for; the whole image's region and END are asked for by nobody who audits
(`region_candidate_mask` leaves them out). Shape letters: L layers, B batch, H heads, T text, R regions, N sequence,
Q asked rows, K asked columns.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from grounded_attention.modeling.attention_calls import layer_names
from grounded_attention.modeling.sequence_inputs import UNREAD_INPUTS, shift_indices
from grounded_attention.supervision import DIRECTIONS, from_attention_maps, supervise
from grounded_attention.supervision.alignment import locate_indices
from grounded_attention.supervision.attention_function import AttentionPair
from grounded_attention.supervision.method import observed_layers
from grounded_attention.supervision.supervise import unwrap_model

from .feed_forward import feed_forward_in_parts

Batch = Mapping[str, Any]
Queries = Mapping[str, tuple[Tensor, Tensor]]

_POSITIONS = ("text_positions", "region_positions")


class Observer(ABC):
    """Reads the attention of chosen words and regions out of one model.

    Attributes:
        model (`Any`): the model without its task's head.
        layers (`tuple[str, ...]`): the names of the L layers, in order.
        heads (`int`): H, in each of them.
    """

    model: Any
    layers: tuple[str, ...]
    heads: int

    @abstractmethod
    def observe(self, batch: Batch, queries: Queries) -> dict[str, AttentionPair]:
        """Runs the model, without gradients.

        Args:
            batch (`Batch`): what a processor of this project returns; the observer gives the model what it reads of
                it.
            queries (`Queries`): direction ("text_to_region", "region_to_text") -> rows (B, Q) and columns (B, K),
                int64 indices of tokens and regions, -1 pads.

        Returns:
            `dict[str, AttentionPair]`: direction -> `log_alpha` (L, B, H, Q, K), log-probabilities over the asked
            columns alone, about -1e9 at padded ones, and `log_share` (L, B, H, Q), log of the attention that goes to
            those columns together; float32. Values of padded rows carry no meaning.
        """


# On the attention interface


class InterfaceObserver(Observer):
    """Any model on transformers' attention interface.

    While it is observed its attention back end is the supervised twin, which computes the same. The batch says where
    words and regions are in the model's sequence: `text_positions` (B, T) and `region_positions` (B, R) int64.

    Raises:
        ValueError: the model is not on the interface, or its back end has no twin.
    """

    def __init__(self, model: Any):
        model = unwrap_model(model)
        self.model = getattr(model, "base_model", model)
        try:
            with supervise(model) as supervision:
                calls = supervision.calls
        except ValueError as error:
            raise ValueError(
                f"{error}; it can't be audited either: no observer knows {type(model).__name__}. Known without the "
                f"interface: {', '.join(_HOOKED)}"
            ) from error
        self.layers = tuple(name.removeprefix("layer ") for name in layer_names(calls))
        self.heads = min((call.num_heads for call in calls), default=0)

    @torch.no_grad()
    def observe(self, batch: Batch, queries: Queries) -> dict[str, AttentionPair]:
        directions = [name for name in DIRECTIONS if name in queries]
        asked = self.ask(batch, {name: queries[name] for name in directions})
        with supervise(self.model):
            outputs = self.model(**self.inputs(batch), **asked, output_attentions=True)
        layers = observed_layers(outputs)
        pairs = [[layer.pairs[i] for layer in layers] for i in range(len(directions))]
        return {
            name: _stack([pair for pair in found if pair is not None])
            for name, found in zip(directions, pairs, strict=True)
        }

    def ask(self, batch: Batch, queries: Queries) -> dict[str, Any]:
        """The keyword arguments that ask the model for these rows."""
        missing = [name for name in _POSITIONS if batch.get(name) is None]
        if missing:
            raise ValueError(
                f"{type(self.model).__name__}: the batch lacks {', '.join(missing)}: where each token and region "
                "is in the model's sequence"
            )
        places = dict(zip(DIRECTIONS, ([batch[name] for name in order] for order in _ORDERS), strict=True))
        located = [tuple(map(locate_indices, queries[name], places[name])) for name in queries]
        return {"attention_queries": tuple(located)}

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """What the model reads of a batch."""
        return {name: value for name, value in batch.items() if name not in (*UNREAD_INPUTS, *_POSITIONS)}


def reads_pixels(model: Any) -> bool:
    """Whether the model finds the features of regions itself, in images."""
    return getattr(model.config, "vision_config", None) is not None


_ORDERS = (_POSITIONS, _POSITIONS[::-1])


def _stack(pairs: Sequence[AttentionPair]) -> AttentionPair:
    alphas, shares = zip(*pairs, strict=True)
    return torch.stack(alphas), torch.stack(shares)


class FamilyObserver(InterfaceObserver):
    """The models of this project, which know themselves where tokens and regions are."""

    def __init__(self, model: Any):
        super().__init__(model)
        self._known = frozenset(inspect.signature(self.model.forward).parameters)

    def observe(self, batch: Batch, queries: Queries) -> dict[str, AttentionPair]:
        with feed_forward_in_parts(self.model):
            return super().observe(batch, queries)

    def ask(self, batch: Batch, queries: Queries) -> dict[str, Any]:
        return {"grounding_queries": dict(queries)}

    def inputs(self, batch: Batch) -> dict[str, Any]:
        return {name: value for name, value in batch.items() if name in self._known and name != "grounding_queries"}


# By hooks


@contextmanager
def _reading(module: nn.Module, take: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Hands `take` the number of each call of an attention module and its map (B, H, N, M), which nobody keeps."""
    calls = 0

    def ask(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        given = inspect.signature(module.forward).bind(*args, **kwargs)
        given.arguments["output_attentions"] = True
        return given.args, given.kwargs

    def reduce(module: nn.Module, args: Any, kwargs: Any, outputs: tuple) -> tuple:
        nonlocal calls
        take(calls, outputs[1])
        calls += 1
        return outputs[:1]

    handles = [
        module.register_forward_pre_hook(ask, with_kwargs=True),
        module.register_forward_hook(reduce, with_kwargs=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class VisualBertObserver(Observer):
    """transformers' `VisualBertModel` and its heads: columns [text T][regions R].

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
        """What the model reads of a batch, under its names."""
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
    """transformers' `LxmertModel` and its heads: the cross-attention of each cross layer, in both directions.

    transformers returns the attention from words to regions only; both are read where they are computed. Padded
    regions are masked, which the original code, with its fixed 36 regions, has no need of.
    """

    def __init__(self, model: Any):
        self.model = model.base_model
        self.layers = tuple(f"cross {layer}" for layer in range(model.config.x_layers))
        self.heads = model.config.num_attention_heads

    @torch.no_grad()
    def observe(self, batch: Batch, queries: Queries) -> dict[str, AttentionPair]:
        read: dict[str, list[AttentionPair]] = {name: [] for name in queries}

        def take(call: int, maps: Tensor) -> None:  # each layer's one module is called for words, then for regions
            name = DIRECTIONS[call]
            if name in queries:
                read[name].append(from_attention_maps(maps, *queries[name]))

        with ExitStack() as stack:
            for layer in self.model.encoder.x_layers:
                stack.enter_context(_reading(layer.visual_attention.att, take))
            self.model(**self.inputs(batch), output_attentions=False)
        return {name: _stack(pairs) for name, pairs in read.items()}

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """What the model reads of a batch, under its names."""
        return {
            **_text_inputs(batch),
            "visual_feats": batch["region_features"],
            "visual_pos": batch["region_boxes"],
            "visual_attention_mask": batch["region_attention_mask"],
        }


def _text_inputs(batch: Batch) -> dict[str, Any]:
    return {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in batch}


# The model type of a configuration -> how a model is read that is not on the attention interface.
_HOOKED: dict[str, Callable[[Any], Observer]] = {"visual_bert": VisualBertObserver, "lxmert": LxmertObserver}


def get_observer(model: Any) -> Observer:
    """The observer of a model, with or without a task's head.

    Raises:
        ValueError: its attention cannot be read.
    """
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind is None:
        raise ValueError(f"{type(model).__name__} is no model of transformers: its attention cannot be audited")
    # The contract of a family: it lists its attention calls, and its models take `grounding_queries`.
    known = FamilyObserver if hasattr(model.config, "grounding_calls") else InterfaceObserver
    return _HOOKED.get(kind, known)(model)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reads the attention of chosen words and regions from any model; all that measures or shows heads reads it here.

Models on transformers' attention interface report the query rows through the attention function, with any back end.
transformers' VisualBERT and LXMERT compute full maps: hooks take the query rows from the map of one layer and release
it, so only one map exists at a time.

A query selects key columns. The whole-image region and END are no candidates (`region_candidate_mask`). Row l of what
is read is layer l of the model; a layer without heads sees nothing. Shape letters: L layers, B batch, H heads, T text,
P phrases, R regions or image tokens, N sequence, Q query rows, K key columns.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from accelerate.utils import recursively_apply
from torch import Tensor, nn
from transformers.utils import logging

from grounded_attention.modeling.attention_calls import layer_labels
from grounded_attention.modeling.finite_numbers import finite_scores
from grounded_attention.modeling.sequence_inputs import UNREAD_INPUTS, asking_tokens, shift_indices
from grounded_attention.processing.grounded_batch import word_inputs
from grounded_attention.processing.patch_grounding import GROUNDING_KEYS, PatchGroundingProcessor
from grounded_attention.supervision import DIRECTIONS, from_attention_maps, supervise
from grounded_attention.supervision.alignment import locate_indices
from grounded_attention.supervision.attention_function import layer_numbers, read_rows
from grounded_attention.supervision.layer_losses import read_pairs
from grounded_attention.supervision.method import observed_layers
from grounded_attention.supervision.row_plans import RowPlans
from grounded_attention.supervision.row_states import AttentionPair, HandedStates
from grounded_attention.supervision.score_masks import LOWEST_SCORE, is_hidden
from grounded_attention.supervision.supervise import (
    call_layers,
    check_model,
    find_calls,
    find_encoder,
    find_language_model,
    model_device,
    returns_maps,
    unwrap_model,
)
from grounded_attention.utils.named_types import Batch, Fields

Queries = Mapping[str, tuple[Tensor, Tensor]]

TEXT_TO_REGION, REGION_TO_TEXT = DIRECTIONS
_POSITIONS = ("text_positions", "region_positions")
_ORDERS = (_POSITIONS, _POSITIONS[::-1])
# Tokens that a feed-forward layer processes at once: few are enough for the cores of a CPU; a GPU needs more.
TOKENS_AT_ONCE = {"cpu": 256}
MANY_TOKENS = 8192
# Of the attention maps of all layers, where nothing else can be read.
MAPS_GIB = 8

logger = logging.get_logger(__name__)


class Observer(ABC):
    """Reads the attention of chosen words and regions from one model.

    `layers` has the names of the L layers, `headless` the numbers of those without heads.
    """

    model: Any
    layers: tuple[str, ...]
    heads: int
    headless: tuple[int, ...] = ()

    @abstractmethod
    def observe(self, batch: Batch, queries: Queries) -> dict[str, AttentionPair]:
        """Direction -> log_alpha (L, B, H, Q, K) and log_share (L, B, H, Q); runs the model, without gradients."""


# On the attention interface


class InterfaceObserver(Observer):
    """Observes any model on transformers' attention interface.

    During an observation the model uses the supervised version of its attention back end, which computes the same
    output. The batch contains the positions of words and regions in the sequence of the model: `text_positions` (B, T)
    and `region_positions` (B, R), int64.
    """

    def __init__(self, model: Any):
        model = unwrap_model(model)
        self.model = find_encoder(model)
        with nullcontext() if returns_maps(model) else supervise(model):
            calls = find_calls(model)
        self._known = frozenset(inspect.signature(self.model.forward).parameters)
        self._name_layers(calls)
        self.heads = max((call.num_heads for call in calls), default=0)

    def _name_layers(self, calls: Sequence[Any]) -> None:
        numbers = call_layers(calls)
        known = getattr(find_language_model(self.model).config, "num_hidden_layers", 0)
        count = max(known, *(number + 1 for number in numbers))
        self.layers = tuple(map(str, range(count)))
        self.headless = tuple(sorted({*range(count)} - {*numbers}))

    @torch.no_grad()
    def observe(self, batch: Batch, queries: Queries) -> dict[str, AttentionPair]:
        queries = {name: queries[name] for name in DIRECTIONS if name in queries}
        arguments = self.query_arguments(batch, queries)
        inputs = self.inputs(batch)
        if returns_maps(self.model):
            asked = arguments["attention_queries"]
            reports: list[Any] = [each.read(asked, plans=None) for each in own_maps(self.model, inputs)]
            places: Sequence[int] = range(len(reports))
        else:
            wanted = {"attention_plans": RowPlans(), "output_attentions": True, "return_dict": True}
            with supervise(self.model):
                outputs = self.model(**inputs, **arguments, **wanted, attention_states=True)
            layers = observed_layers(outputs)
            reports = [layer.reports for layer in layers]
            places = layer_numbers(layers)  # of a family, their places
        read = {}
        for number, name in enumerate(queries):
            seen = {
                place: each[number] for place, each in zip(places, reports, strict=True) if each[number] is not None
            }
            read[name] = _stack(read_pairs([*seen.values()]), [*seen], len(self.layers))
        return read

    def query_arguments(self, batch: Batch, queries: Queries) -> Fields:
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

    def inputs(self, batch: Batch) -> Fields:
        """The entries of a batch that are inputs of the model; pixels in its precision."""
        left = {*UNREAD_INPUTS, *_POSITIONS, *(name for name in GROUNDING_KEYS if name not in self._known)}
        return _on_device({name: value for name, value in batch.items() if name not in left}, self.model)


@torch.no_grad()
def own_maps(model: Any, inputs: Fields) -> Iterator[HandedStates]:
    """The attention maps of all layers which a model that is not on the interface returns itself, one after the other.

    They come as queries and keys that give them.
    """
    heads = [call.num_heads for call in find_calls(model)]
    batch, length = inputs["input_ids"].shape
    size = 4 * batch * length**2 * sum(heads) / 2**30
    why = f"the attention of {type(model).__name__} is code of its own, not on transformers' interface"
    cost = f"it is read from the maps of all layers, which may take {MAPS_GIB} GiB"
    if size > MAPS_GIB:
        raise ValueError(f"{why}: {cost}, but take {size:.1f} for {length} tokens; give smaller images or fewer words")
    logger.warning_once(f"{why}: {cost}")
    maps: Any = getattr(model(**inputs, output_attentions=True), "attentions", None) or ()
    if [getattr(each, "shape", None) for each in maps] != [(batch, count, length, length) for count in heads]:
        raise ValueError(
            f"{why}, and with output_attentions=True it returns no maps of {len(heads)} layers and {length} tokens: "
            "load it with attn_implementation='eager', or it cannot be read"
        )
    keys = torch.eye(length, device=maps[0].device).expand(batch, 1, -1, -1)
    for layer, each in enumerate(maps):
        scores = each.float().clamp(min=torch.finfo(torch.float32).tiny).log()
        read = partial(read_rows, scores, keys, scaling=1.0, mask=None, causal=False, share=True)
        yield HandedStates(layer, scores, keys, (), False, read)


def reads_pixels(model: Any) -> bool:
    """Whether the model computes region features from images."""
    return getattr(model.config, "vision_config", None) is not None


def _stack(pairs: Sequence[AttentionPair], places: Sequence[int] | None = None, count: int = 0) -> AttentionPair:
    """The pairs of the layers as one; at places without a pair, and at heads that a layer lacks, nothing is seen."""
    if places is None or len(pairs) >= count:
        places = range(len(pairs))
    first = pairs[0][0]
    shape = (max(count, len(pairs)), len(first), max(alpha.shape[1] for alpha, _ in pairs), *first.shape[2:])
    alphas = first.new_full(shape, LOWEST_SCORE)
    shares = first.new_full(shape[:-1], LOWEST_SCORE)
    for place, (alpha, share) in zip(places, pairs, strict=True):
        alphas[place, :, : alpha.shape[1]] = alpha
        shares[place, :, : alpha.shape[1]] = cast(Tensor, share)
    return alphas, shares


class FamilyObserver(InterfaceObserver):
    """Observes the models of this project, which find the positions of tokens and regions themselves."""

    def _name_layers(self, calls: Sequence[Any]) -> None:
        self.layers = tuple(layer_labels(calls))

    def observe(self, batch: Batch, queries: Queries) -> dict[str, AttentionPair]:
        with feed_forward_in_parts(self.model):
            return super().observe(batch, queries)

    def query_arguments(self, batch: Batch, queries: Queries) -> Fields:
        return {"grounding_queries": dict(queries)}

    def inputs(self, batch: Batch) -> Fields:
        return {name: value for name, value in batch.items() if name in self._known and name != "grounding_queries"}


@contextmanager
def feed_forward_in_parts(model: Any) -> Iterator[None]:
    """Context in which transformers' BERT layers process tokens in parts: their wide states need the most memory.

    It works only without gradients. transformers' own `chunk_size_feed_forward` splits the sequence and needs a
    divisor of its length. Other kinds of layers are not changed.
    """
    layers = [module for module in model.modules() if hasattr(module, "feed_forward_chunk")]
    tokens = TOKENS_AT_ONCE.get(model_device(model).type, MANY_TOKENS)
    try:
        for layer in layers:
            layer.feed_forward_chunk = partial(_in_parts, layer.feed_forward_chunk, tokens)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("feed_forward_chunk", None)


def _in_parts(feed_forward: Any, tokens: int, attention_output: Tensor) -> Tensor:
    flat = attention_output.flatten(0, -2)
    done = torch.empty_like(flat)
    for part, place in zip(flat.split(tokens), done.split(tokens), strict=True):
        place.copy_(feed_forward(part))
    return done.view_as(attention_output)


# By hooks


@contextmanager
def _reading(module: nn.Module, take: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Calls `take` with the number of each call of an attention module and its map (B, H, N, M); drops the map."""
    calls = 0

    def request_map(module: nn.Module, args: tuple, kwargs: Fields) -> tuple[tuple, Fields]:
        call = inspect.signature(module.forward).bind(*args, **kwargs)
        call.arguments["output_attentions"] = True
        return call.args, call.kwargs

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


class HookedObserver(Observer):
    """Observes transformers' VisualBERT and LXMERT, and their task models.

    VisualBERT has one sequence [text T][regions R]. Its regions have the visual token type 0, as in the original code,
    unless the batch has `region_token_type_ids`. Of LXMERT the cross-attention of each cross layer is read: its module
    is called for words, then for regions; the original code always has 36 regions, here padded ones are masked.
    """

    def __init__(self, model: Any):
        self.model = model.base_model
        self.crosses = model.config.model_type == "lxmert"
        encoder = self.model.encoder
        if self.crosses:
            self.modules = [layer.visual_attention.att for layer in encoder.x_layers]
        else:
            self.modules = [layer.attention.self for layer in encoder.layer]
        self.layers = tuple(f"{'cross ' * self.crosses}{layer}" for layer in range(len(self.modules)))
        self.heads = model.config.num_attention_heads

    @torch.no_grad()
    def observe(self, batch: Batch, queries: Queries) -> dict[str, AttentionPair]:
        text = 0 if self.crosses else batch["input_ids"].shape[1]
        starts = {TEXT_TO_REGION: (0, text), REGION_TO_TEXT: (text, 0)}
        placed = {name: tuple(map(shift_indices, queries[name], starts[name])) for name in queries}
        read: dict[str, list[AttentionPair]] = {name: [] for name in queries}

        def take(call: int, maps: Tensor) -> None:
            for name in [DIRECTIONS[call]] if self.crosses else list(placed):
                if name in placed:
                    read[name].append(from_attention_maps(maps, *placed[name]))

        with ExitStack() as stack:
            for module in self.modules:
                stack.enter_context(_reading(module, take))
            self.model(**self.inputs(batch), output_attentions=False)
        return {name: _stack(pairs) for name, pairs in read.items()}

    def inputs(self, batch: Batch) -> Fields:
        """The inputs of the model, with its names."""
        mask = batch["region_attention_mask"]
        types = batch.get("region_token_type_ids")
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in batch}
        inputs["visual_attention_mask"] = mask
        if self.crosses:
            return {**inputs, "visual_feats": batch["region_features"], "visual_pos": batch["region_boxes"]}
        return {
            **inputs,
            "visual_embeds": batch["region_features"],
            "visual_token_type_ids": torch.zeros_like(mask, dtype=torch.long) if types is None else types,
            "image_text_alignment": batch.get("image_text_alignment"),
        }


HOOKED = ("visual_bert", "lxmert")  # model types that are not on the attention interface


def get_observer(model: Any) -> Observer:
    """Makes the observer of a model."""
    check_model(model)
    config = unwrap_model(model).config
    # The contract of a family: its config lists the attention calls, and its models accept `grounding_queries`.
    if config.model_type in HOOKED:
        return HookedObserver(model)
    return (FamilyObserver if hasattr(config, "grounding_calls") else InterfaceObserver)(model)


# The attention of phrases


def inputs_on(batch: Batch, model: Any) -> Fields:
    """The entries of a batch that a vision-language model reads, on its device; pixels in its precision."""
    return _on_device(PatchGroundingProcessor.model_inputs(batch), unwrap_model(model))


def _on_device(inputs: Fields, model: Any) -> Fields:
    device = model_device(model)

    def place(value: Tensor) -> Tensor:
        return value.to(device, model.dtype if value.is_floating_point() else None)

    return recursively_apply(place, inputs)  # also in lists, as code of the Hub has them


def ask_at_the_end(batch: Batch) -> Tensor:
    """`text_positions` with one more column: the last token of each prompt, which asks for the whole prompt."""
    attended = batch[word_inputs(batch)[1]].long()
    ends = (attended * torch.arange(1, attended.shape[1] + 1, device=attended.device)).argmax(1)
    return torch.cat([batch["text_positions"], ends[:, None]], 1)


@torch.no_grad()
def read_phrases(observer: Observer, batch: Batch, words: str = "mean") -> Tensor:
    """(L, B, H, P, R) float32: the attention of each phrase on the regions, as a mean over the words that ask."""
    if "text_positions" in batch:  # a cache would keep the states of all tokens for a next one, which does not come
        batch = {**batch, "use_cache": False}
        shown = batch["region_positions"] >= 0
    else:
        shown = batch["region_candidate_mask"].bool()
    mask = batch["phrase_mask"].float()
    if words == "prompt":
        batch = {**batch, "text_positions": ask_at_the_end(batch)}
        rows = torch.full((len(mask), 1), mask.shape[2])
        weights = torch.ones(*mask.shape[:2], 1)
    else:
        rows, weights = _query_rows(mask, words)
    columns = torch.arange(shown.shape[1], device=shown.device).expand_as(shown).masked_fill(~shown, -1)
    device = model_device(observer.model)
    inputs = {}
    for name, value in batch.items():
        inputs[name] = value.to(device) if isinstance(value, Tensor) else value
    pair = observer.observe(inputs, {TEXT_TO_REGION: (rows.to(device), columns.to(device))})[TEXT_TO_REGION]
    return torch.einsum("bpq,lbhqr->lbhpr", weights.to(device), attention_of(pair))


def attention_of(pair: AttentionPair) -> Tensor:
    """(..., H, Q, K): the attention over the whole row; 0 where a row sees no candidate."""
    log_alpha = pair[0]
    log_share = cast(Tensor, pair[1])
    return finite_scores((log_alpha + log_share[..., None]).exp().masked_fill(is_hidden(log_alpha), 0.0))


def _query_rows(mask: Tensor, words: str) -> tuple[Tensor, Tensor]:
    """The tokens that ask, (B, Q), and the weight of each for each phrase, (B, P, Q); `mask` (B, P, T) float."""
    mask = asking_tokens(mask, words)
    used = mask.any(0).any(0)
    asking = mask.any(1)[:, used]
    rows = used.nonzero()[:, 0].expand_as(asking).masked_fill(~asking, -1)
    return rows, (mask / mask.sum(-1, keepdim=True).clamp(min=1))[..., used]

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The base class of supervision methods, and the base class of methods that read attention.

Shape letters: B batch, H heads, T text, R regions, P phrases, Q queried rows, K queried columns.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Len
from torch import Tensor
from torch.utils._pytree import tree_iter
from transformers.utils import logging

from grounded_attention.modeling.attention_calls import DIRECTION_STREAMS, SEQUENCE, AttentionCall, layer_names
from grounded_attention.modeling.task_losses import Counts, Loss, Losses
from grounded_attention.utils.named_types import Batch, Fields, Head
from grounded_attention.utils.schema import Index, Pair, Weight

from .alignment import (
    DIRECTIONS,
    GroundingTargets,
    align,
    grounding_targets,
    sequence_pairs,
)
from .attention_function import SupervisedAttention
from .layer_losses import BoxLoss, LayerReport, sum_layers
from .row_states import AttentionPair
from .score_masks import LOWEST_SCORE
from .supervise import call_layers, hides_later_words, reads_image_apart, supervise


def from_attention_maps(maps: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Converts attention maps to a pair like those of `SupervisedAttention.pairs`."""
    index = rows.clamp(min=0)[:, None, :, None].expand(-1, maps.shape[1], -1, maps.shape[3])
    selected = maps.gather(2, index)
    index = columns.clamp(min=0)[:, None, None].expand(-1, *selected.shape[1:3], -1)
    selected = selected.gather(3, index).float()
    hidden = (selected <= 0) | (columns < 0)[:, None, None]
    logs = selected.clamp(min=torch.finfo(torch.float32).tiny).log().masked_fill(hidden, LOWEST_SCORE)
    return logs.log_softmax(-1).masked_fill(hidden, LOWEST_SCORE), logs.logsumexp(-1)


def uniform_rows(log_alpha: Tensor, gold: Tensor) -> Tensor:
    """Computes the cross-entropy with the uniform distribution over the gold columns (VGP paper, equation 7)."""
    weights = gold / gold.sum(-1, keepdim=True).clamp(min=1)
    return -(log_alpha.mean(2) * weights).sum(-1)


def sum_rows(log_alpha: Tensor, gold: Tensor) -> Tensor:
    """Computes -log of the attention to each gold column, added up: equation 7 as it is written."""
    return -(log_alpha.mean(2) * gold).sum(-1)


def any_rows(log_alpha: Tensor, gold: Tensor) -> Tensor:
    """Computes -log of the total attention to the gold columns, so attention to any of them is enough."""
    logs = log_alpha.masked_fill(~gold[:, :, None], LOWEST_SCORE)
    return -logs.logsumexp(-1).mean(2) * gold.any(-1)


# The option `target` of methods -> the loss of rows
TARGET_LOSSES = {"uniform": uniform_rows, "sum": sum_rows, "any": any_rows}


Direction = Literal["text_to_region", "region_to_text"]

TARGETS = "attention_targets"  # the entry that `prepare_batch` adds to a batch

VGP_CITATION = """@inproceedings{samaran-etal-2021-attending,
    title = "Attending Self-Attention: A Case Study of Visually Grounded Supervision
        in Vision-and-Language Transformers",
    author = "Samaran, Jules and Garcia, Noa and Otani, Mayu and Chu, Chenhui and Nakashima, Yuta",
    booktitle = "Proceedings of the ACL-IJCNLP 2021 Student Research Workshop",
    year = "2021",
}"""


logger = logging.get_logger(__name__)

SPOKEN = 2  # batches without a supervised row before one line
# So many batches may have rows that see no gold column, for example because texts are shorter than a layer's window.
HIDDEN_LIMIT = 8
# So many may have no grounded row at all: few rows of a mixture of data sets may have phrases.
EMPTY_LIMIT = 1000
HIDDEN = (
    "no supervised layer lets these rows see the regions they should attend to, so the loss is constant; put images "
    "before the words, give directions=['text_to_region'], or choose layers without a sliding window"
)
EMPTY = (
    "no phrase has both words and regions, so nothing is supervised; check that rows have phrases with boxes or "
    "regions, that regions fit the boxes (the right table, an IoU that is reached), and that max_length does not cut "
    "the phrases (`dropped_phrases` of a batch)"
)


class VisibleRows:
    """Checks the losses of a method in training until each direction had a row that sees a gold column."""

    def __init__(self, empty: str = EMPTY) -> None:
        self._empty = empty
        self._waited: dict[str, dict[str, int]] = {}  # direction -> problem -> batches; none after the first row

    def check(self, losses: Mapping[str, Loss], counts: Callable[[], Mapping[str, Tensor | int]]) -> None:
        """Checks the losses of one batch: component -> (sum, number of rows that see a gold column)."""
        for name, (_, count) in losses.items() if torch.is_grad_enabled() else ():
            waited = self._waited.setdefault(name, {HIDDEN: 0, self._empty: 0})
            if waited and int(count):
                waited.clear()
            if not waited:
                continue
            if int(counts().get(name, 0)):
                problem = HIDDEN
            else:
                problem = self._empty
            waited[problem] += 1
            limit = HIDDEN_LIMIT if problem == HIDDEN else EMPTY_LIMIT
            if waited[problem] == SPOKEN:
                logger.warning(f"{name}, {SPOKEN} batches: {problem}; training ends after {limit} such batches")
            if waited[problem] == limit:
                raise ValueError(f"{name}: {problem}")


# The number of a row in the batch -> its random generator. Those of a collator depend only on the seed, the epoch and
# the key of the row.
RowGenerators = Callable[[int], np.random.Generator]


def fixed_generator(row: int) -> np.random.Generator:
    """The generator without a collator, the same for all rows, so that a row draws the same in any batch."""
    return np.random.default_rng(0)


class SupervisionMethod(ABC):
    """A method that supervises attention. It works on the outputs of any model and does not need the Trainer.

    Call `prepare(model)` once. For each batch run `model(..., **method.forward_kwargs(batch))`, then
    `method.losses(outputs, batch)`. Each loss component is a (sum, count). Divide the sum by the count over all
    micro-batches and processes of one step; the result is exactly the loss of one large batch, even if micro-batches
    have different counts.

    `batch` contains `phrase_mask` (B, P, T) bool and `phrase_regions` (B, P, R) float32, 1 or 0, and the 0/1 tensors
    `attention_mask` (B, T) and `region_attention_mask` (B, R). `text_positions` (B, T) and `region_positions` (B, R)
    say where tokens and regions are for the model, of any kind; -1 is padding. A collator may add
    `prepare_batch(batch)` to the batch; then the training step does not repeat this work, and a GPU does not wait.
    """

    name: str
    needs_grounding: bool = True
    choosable: tuple[str, ...] = ()  # "layers" and "heads", if the method can supervise some of them only
    citation: str = VGP_CITATION
    # What the method did to a model, after "it reads words and image regions;" in a model card.
    effect: str = "its attention was supervised with phrases whose regions are known"

    empty: str = EMPTY  # what is said if no row is grounded

    @cached_property
    def visible_rows(self) -> VisibleRows:
        """Checks that training supervises something (`VisibleRows`)."""
        return VisibleRows(self.empty)

    @property
    def parts(self) -> tuple["SupervisionMethod", ...]:
        """The methods whose losses this one has: itself, or several, see [`CombinedSupervision`]."""
        return (self,)

    @property
    def model_config(self) -> Fields:
        """The configuration fields that a model needs for this method; without heads of other methods by default."""
        return {"box_layer": None, "alignment_level": None}

    def prepare(self, model: Any) -> None:  # noqa: B027 - most, not all, methods change the model
        """Prepares a model, once, before training.

        Args:
            model (`PreTrainedModel`): the model.

        Raises:
            ValueError: if the model cannot be supervised with this method.
        """

    def prepare_batch(self, batch: Batch, generators: RowGenerators = fixed_generator) -> Fields:
        """Makes entries to add to a batch, so the methods below do not compute them again.

        Args:
            batch (`Mapping[str, Any]`): the batch.
            generators (`RowGenerators`, *optional*): the source of all random draws: number of a row -> its generator.
                By default every row draws the same in any batch.

        Returns:
            `dict[str, Any]`: the entries.
        """
        return {}

    @abstractmethod
    def forward_kwargs(self, batch: Batch) -> Fields:
        """Returns keyword arguments for the forward pass of the model, besides its inputs (`dict[str, Any]`)."""

    @abstractmethod
    def counts(self, batch: Batch) -> Counts:
        """Counts the terms of each loss component; needs no forward pass.

        Returns:
            `dict[str, Tensor]`: component -> count, () int64.
        """

    @abstractmethod
    def losses(self, outputs: Any, batch: Batch) -> Losses:
        """Computes the loss components.

        Args:
            outputs (`ModelOutput`): outputs of the model, run with [`forward_kwargs`].
            batch (`Mapping[str, Any]`): the batch.

        Returns:
            `dict[str, tuple[Tensor, Tensor]]`: component -> (sum () with a graph, count ()); the sum is 0 if nothing
            is grounded.

        Raises:
            ValueError: in training, if nothing was supervised in many batches; one line comes first.
        """

    @abstractmethod
    def get_config_dict(self) -> Fields:
        """Returns the name and all options, ready for JSON; `get_method(**config)` makes an equal method."""


class AttentionMethod(SupervisionMethod):
    """Base class of methods that read attention: options, queries, and the losses of equations 6 to 8.

    Args:
        layers (`Sequence[int | str]`, *optional*): the layers to supervise, by number from 0 or by name in
            `config.grounding_calls`, such as `"cross 3"`; all by default.
        heads (`Sequence[int]` or `Sequence[Sequence[int]]`, *optional*): the heads to supervise in each of these
            layers; all by default. Or, without `layers`, (layer, head) pairs: only these heads, with equal weights.
        directions (`Sequence[str]`, *optional*): `"text_to_region"`, `"region_to_text"` or both. By default both, or
            `"text_to_region"` alone in a causal model, where an image does not see the words after it; `prepare`
            chooses.
        weights (`Mapping[str, float]`, *optional*): direction -> factor of its loss, 1 by default.
        target (`str`, *optional*, defaults to `"uniform"`): for tokens (or regions) with several gold columns:
            `"uniform"`, cross-entropy with equal shares, `"sum"`, -log of the attention of each, added up, or
            `"any"`, -log of their total attention.
        box_weight (`float`, *optional*, defaults to `0.0`): factor of one more loss, 0 for no such loss: the squared
            error of (center_x, center_y, width, height) between the box around the regions of a grounded word and the
            box that its state after the first layer predicts (`outputs.pred_boxes`). This loss is not in the papers.
            Words such as "left of" decide which of two similar objects is meant, and attention alone learns this late.

    Raises:
        ValueError: if an option has another value.
    """

    choosable: tuple[str, ...] = ("layers",)

    @property
    def needs_one_sequence(self) -> bool:
        """Whether it reads image tokens as positions of the sequence of the words."""
        return False

    def __init__(
        self,
        layers: Annotated[Sequence[Index | str], Len(1)] | None = None,
        heads: Annotated[Sequence[Index] | Sequence[Pair], Len(1)] | None = None,
        directions: Annotated[Sequence[Direction], Len(1)] | None = None,
        weights: Mapping[Direction, Weight] | None = None,
        target: Literal["uniform", "sum", "any"] = "uniform",
        box_weight: Weight = 0.0,
    ):
        self._chooses_directions = directions is None
        self.target = target
        self.boxes = BoxLoss(box_weight)
        self.pairs: tuple[Head, ...] | None = None
        if heads is not None and any(isinstance(head, Sequence) for head in heads):
            self.pairs = _check_pairs(heads, layers)
        if self.pairs is not None and "heads" not in self.choosable:
            raise ValueError(
                f"heads={heads}: {self.name} averages heads and cannot supervise single heads: give layers instead"
            )
        chosen = None
        if self.pairs is not None:
            chosen = [layer for layer, _ in self.pairs]
        self.layers: tuple[Any, ...] | None = _sorted_indices(layers if chosen is None else chosen)
        self.heads = None if self.pairs is not None else _sorted_indices(heads)
        self.directions = tuple(name for name in DIRECTIONS if directions is None or name in directions)
        factors: Mapping[Any, float] = weights or {}
        self.weights = {direction: float(factors.get(direction, 1.0)) for direction in self.directions}

    @property
    def model_config(self) -> Fields:
        return {**super().model_config, **self.boxes.model_config}

    def prepare(self, model: Any) -> None:
        """Sets the supervised attention function on the model, see [`supervise`].

        Args:
            model (`PreTrainedModel`): the model.

        Raises:
            ValueError: if the back end of the model has no supervised version, if the model does not use the
                `AttentionInterface` of transformers, if it does not have the layers or heads to supervise, or if it
                has no box head although `box_weight` is set.
        """
        self.boxes.check_model(model)
        self.check_sequence(model)
        self.visible_rows = VisibleRows(self.empty)
        calls = supervise(model).calls
        if self._chooses_directions and hides_later_words(model):
            self.directions = ("text_to_region",)
            self.weights = {name: self.weights[name] for name in self.directions}
        self._check_calls(calls, type(model).__name__)

    def check_sequence(self, model: Any) -> None:
        """Refuses a model whose words read the image by cross-attention if image tokens must be in their sequence."""
        if self.needs_one_sequence and reads_image_apart(model):
            raise ValueError(
                f"method {self.name!r} needs image tokens in the sequence of the words, but {type(model).__name__} "
                "reads the image by cross-attention: take direct"
            )

    def _check_calls(self, calls: Sequence[AttentionCall], model_name: str) -> None:
        """Replaces names of layers by numbers, and checks that the calls have these layers, heads and directions."""
        names = layer_names(calls)
        numbers = call_layers(calls)
        unknown = []
        for layer in self.layers or ():
            if isinstance(layer, str) and layer not in names:
                unknown.append(layer)
        if unknown:
            raise ValueError(f"cannot supervise layers {unknown}: the layers of {model_name} are {', '.join(names)}")
        if self.layers is not None:
            chosen = {numbers[names.index(layer)] if isinstance(layer, str) else layer for layer in self.layers}
            self.layers = tuple(sorted(chosen))
        fewest = min((call.num_heads for call in calls), default=0)
        for option, known in (("layers", numbers), ("heads", list(range(fewest)))):
            beyond = [index for index in self._indices(option) if index not in known]
            if beyond:
                has = f"{len(known)} {option}, from 0 on"
                if known != list(range(len(known))):
                    has = f"heads that attend to the sequence in the layers {', '.join(map(str, known))} only"
                raise ValueError(f"cannot supervise {option} {beyond}: {model_name} has {has}")
        for direction in self.directions:
            if not any(direction in call.directions for call in calls):
                raise ValueError(
                    f"{model_name} has no attention in the direction {direction!r}: give directions that it has"
                )

    def _indices(self, option: str) -> Sequence[int]:
        if option == "heads" and self.pairs is not None:
            return sorted({head for _, head in self.pairs})
        return getattr(self, option) or ()

    def prepare_batch(self, batch: Batch, generators: RowGenerators = fixed_generator) -> Fields:
        aligned = align(batch)
        targets = {name: grounding_targets(aligned, batch, name) for name in self.directions}
        prepared = {TARGETS: {name: vars(target) for name, target in targets.items()}}
        return {**prepared, **(self.boxes.prepare_batch(aligned, batch) if self.boxes.weight else {})}

    def targets(self, batch: Batch) -> dict[str, GroundingTargets]:
        """Returns direction -> the rows, columns and gold columns of the batch (`dict[str, GroundingTargets]`)."""
        return {name: GroundingTargets(**target) for name, target in self._prepared(batch)[TARGETS].items()}

    def _prepared(self, batch: Batch) -> Batch:
        """A mapping with the entries of `prepare_batch`: the batch itself if it has them."""
        if TARGETS in batch:
            return batch
        return self.prepare_batch(batch)

    def counts(self, batch: Batch) -> Counts:
        prepared = self._prepared(batch)
        counts = {name: (target["rows"] >= 0).sum() for name, target in prepared[TARGETS].items()}
        return {**counts, **(self.boxes.counts(prepared) if self.boxes.weight else {})}

    def losses(self, outputs: Any, batch: Batch) -> Losses:
        prepared = {**batch, **self._prepared(batch)}
        losses = {
            **self.attention_losses(outputs, prepared),
            **(self.boxes.losses(outputs, prepared) if self.boxes.weight else {}),
        }
        self.visible_rows.check(losses, lambda: self.counts(prepared))
        return losses

    def read_layers(self, outputs: Any) -> dict[str, list[LayerReport]]:
        """Direction -> the attention of each supervised layer; a method with other losses has none."""
        raise NotImplementedError

    def attention_losses(self, outputs: Any, batch: Batch) -> Losses:
        """Computes the attention losses only.

        Args:
            outputs (`ModelOutput`): outputs of the model.
            batch (`Mapping[str, Any]`): a batch with the entries of [`prepare_batch`].

        Returns:
            `dict[str, tuple[Tensor, Tensor]]`: direction -> (sum, count).
        """
        return self.sum_losses(self.read_layers(outputs), self.targets(batch))

    def get_config_dict(self) -> Fields:
        layers: list[Any] | None = None
        heads: list[Any] | None = None
        if self.pairs is not None:
            heads = [list(pair) for pair in self.pairs]
        else:
            layers = None if self.layers is None else list(self.layers)
            heads = None if self.heads is None else list(self.heads)
        return {
            "name": self.name,
            "layers": layers,
            "heads": heads,
            "directions": list(self.directions),
            "weights": dict(self.weights),
            "target": self.target,
            "box_weight": self.boxes.weight,
        }

    def maps_losses(
        self, maps: Sequence[Tensor], batch: Batch, streams: Sequence[tuple[str, str]] | None = None
    ) -> Losses:
        """Computes the attention losses from full maps, for example the maps of an eager model.

        Args:
            maps (`Sequence[Tensor]`): one (B, H, S, K) tensor for each supervised call, with the supervised heads, not
                negative; 0 where the mask hides a column.
            batch (`Mapping[str, Any]`): the same batch as for [`losses`].
            streams (`Sequence[tuple[str, str]]`, *optional*): for each map the stream of its queries and of its keys,
                see [`AttentionCall`]; by default one sequence of text and regions.

        Returns:
            `dict[str, tuple[Tensor, Tensor]]`: direction -> (sum, count).
        """
        targets = self.targets(batch)
        in_sequence = sequence_pairs(targets, batch)
        pairs: dict[str, list[AttentionPair]] = {name: [] for name in targets}
        for layer, (queries, keys) in zip(maps, streams or [(SEQUENCE, SEQUENCE)] * len(maps), strict=True):
            for name, target in targets.items():
                if queries == keys == SEQUENCE:
                    pairs[name].append(from_attention_maps(layer, *in_sequence[name]))
                elif DIRECTION_STREAMS[name] == (queries, keys):
                    pairs[name].append(from_attention_maps(layer, target.rows, target.columns))
        return self.sum_losses(pairs, targets)

    def sum_losses(
        self, pairs: Mapping[str, Sequence[LayerReport]], targets: Mapping[str, GroundingTargets]
    ) -> Losses:
        """Sums the losses of all rows, each averaged over all heads of all layers.

        A gold column that the mask hides from a row is ignored. A layer that hides all gold columns of a row is left
        out of the mean of this row. A row that sees no gold column in any layer is not counted.

        Args:
            pairs (`Mapping[str, Sequence[LayerReport]]`): direction -> the reports of the calls that have it.
            targets (`Mapping[str, GroundingTargets]`): direction -> its rows, columns and gold columns.

        Returns:
            `dict[str, tuple[Tensor, Tensor]]`: direction -> (sum, number of rows).
        """
        sums = {}
        for name, target in targets.items():
            total, count = sum_layers(pairs[name], target.gold, TARGET_LOSSES[self.target])
            sums[name] = self.weights[name] * total, count
        return sums


def query_arguments(targets: Mapping[str, GroundingTargets], batch: Batch) -> Fields:
    """Makes the keyword argument with which a model reports the attention of these rows."""
    if batch.get("text_positions") is not None:
        return {"attention_queries": sequence_pairs(targets, batch)}
    # A batch made by hand: the model finds the positions itself.
    return {"grounding_queries": {name: (target.rows, target.columns) for name, target in targets.items()}}


def observed_layers(outputs: Any) -> tuple[SupervisedAttention, ...]:
    """Reads the reports of the supervised layers, in order."""
    # Some models also record the outputs of linear attention here.
    recorded = [*(getattr(outputs, "attentions", None) or ()), *(getattr(outputs, "cross_attentions", None) or ())]
    layers = [each for each in recorded if isinstance(each, SupervisedAttention)]
    if not layers:
        raise ValueError(
            "the outputs have no supervised attention: call method.prepare(model) once, and run the model with "
            "**method.forward_kwargs(batch)"
        )
    if torch.is_grad_enabled() and not _require_grad(layers) and _require_grad(list(vars(outputs).values())):
        raise ValueError(
            "supervised attention has no gradient, but other outputs of the model have one. Either gradient "
            'checkpointing is re-entrant: set gradient_checkpointing_kwargs={"use_reentrant": False}. Or all weights '
            "below the supervised layers are frozen: train some of them, or do not supervise attention"
        )
    return tuple(layers)


def _require_grad(nested: Any) -> bool:
    """Whether at least one tensor, or what is still to be read, requires a gradient."""
    return any(getattr(leaf, "requires_grad", False) for leaf in tree_iter(nested))


def _check_pairs(pairs: Any, layers: Any) -> tuple[Head, ...]:
    """Sorts (layer, head) pairs and removes duplicates."""
    if layers is not None:
        raise ValueError(f"heads={list(pairs)} are pairs of layer and head: remove layers={list(layers)}")
    return tuple(sorted({(layer, head) for layer, head in pairs}))


def _sorted_indices(indices: Sequence[Any] | None) -> tuple[Any, ...] | None:
    """Sorts indices and removes duplicates; names of layers come last, because only a model has their numbers."""
    if indices is None:
        return None
    numbers = [index for index in indices if not isinstance(index, str)]
    names = [index for index in indices if isinstance(index, str)]
    return (*sorted(set(numbers)), *dict.fromkeys(names))

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What every attention supervision method is, and what the methods that read attention share.

Shape letters: B batch, H heads, T text, R regions, P phrases, Q asked rows, K asked columns.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from grounded_attention.modeling.attention_calls import DIRECTION_STREAMS, SEQUENCE, AttentionCall, layer_names

from .alignment import (
    DIRECTIONS,
    GroundingTargets,
    align,
    first_region,
    grounding_targets,
    sequence_pairs,
)
from .attention_function import AttentionPair, SupervisedAttention
from .box_loss import BoxLoss
from .losses import (
    VisibleTargets,
    any_rows,
    from_attention_maps,
    released_region_rows,
    released_text_rows,
    uniform_rows,
    visible_targets,
)
from .supervise import supervise

Batch = Mapping[str, Any]

TARGETS = "attention_targets"  # what `prepare_batch` adds to a batch

VGP_CITATION = """@inproceedings{samaran-etal-2021-attending,
    title = "Attending Self-Attention: A Case Study of Visually Grounded Supervision
        in Vision-and-Language Transformers",
    author = "Samaran, Jules and Garcia, Noa and Otani, Mayu and Chu, Chenhui and Nakashima, Yuta",
    booktitle = "Proceedings of the ACL-IJCNLP 2021 Student Research Workshop",
    year = "2021",
}"""


class SupervisionMethod(ABC):
    """A way to supervise attention, usable on any model's outputs and independent of the Trainer.

    The order of calls: `prepare(model)` once; for each batch `model(..., **method.forward_kwargs(batch))`, then
    `method.losses(outputs, batch)`. A component of a loss is a (sum, count): divide the sum by the count of all
    micro-batches and processes of one step, and ragged counts give the large batch's loss exactly.

    `batch` maps `phrase_mask` (B, P, T) and `phrase_regions` (B, P, R) to bool tensors, and `attention_mask` (B, T),
    `region_attention_mask` (B, R) to 0/1 tensors. A collator that adds `prepare_batch(batch)` to it spares the step
    the work that needs no model, and on a GPU the waiting for it.
    """

    name: ClassVar[str]
    needs_grounding: ClassVar[bool] = True
    choosable: ClassVar[tuple[str, ...]] = ()  # of "layers" and "heads", what supervision can be confined to
    citation: ClassVar[str] = VGP_CITATION

    @property
    def model_config(self) -> dict[str, Any]:
        """Configuration fields that a model needs to be supervised this way; no box head that nothing trains."""
        return {"box_layer": None}

    def prepare(self, model: Any) -> None:  # noqa: B027 - most, not all, methods change the model
        """Makes a model ready, once, before training.

        Raises:
            ValueError: the model cannot be supervised this way.
        """

    def prepare_batch(self, batch: Batch) -> dict[str, Any]:
        """Entries to add to a batch, made once, on the CPU: what the calls below would compute from it each time."""
        return {}

    @abstractmethod
    def forward_kwargs(self, batch: Batch) -> dict[str, Any]:
        """Keyword arguments that the model's forward needs besides its inputs."""

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Component -> how many things its sum runs over, () int64; needs no forward pass."""

    @abstractmethod
    def losses(self, outputs: Any, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Component -> (sum () with a graph, count ()); the sum is 0 where nothing is grounded."""

    @abstractmethod
    def get_config_dict(self) -> dict[str, Any]:
        """The name and every option, JSON-ready; `get_method(**config)` makes an equal method."""


class AttentionMethod(SupervisionMethod):
    """What the methods on attention share: options, queries, and the losses of equations 6 to 8.

    Args:
        variant: "paper", or "released" for the VGP public code: one region a token, its epsilons, and binary
            cross-entropy on log-probabilities from regions to text.
        layers: the layers to supervise, by number from 0 on, or by the names of `config.grounding_calls`, such as
            "cross 3"; None is all.
        heads: the heads to supervise in each of them; None is all. Or (layer, head) pairs, in the place of `layers`:
            those heads alone, each with the same weight.
        directions: of "text_to_region" and "region_to_text".
        weights: direction -> factor of its loss, 1 where not given.
        target: for tokens (or regions) with several gold columns: "uniform" over them (cross-entropy), or "any", -log
            of what they receive together. Only for the paper variant.
        normalization: "linear" or "softmax", of the released variant.
        box_weight: factor of a further loss, 0 for none: the squared error of (center_x, center_y, width, height)
            between the box around a grounded word's regions and what its state after layer `box_layer` says of it
            (`outputs.pred_boxes`). Not in the papers: of two things alike "left of" tells which one is meant, and
            attention alone learns that late.
        box_layer: the layer, from 0 on.

    Raises:
        ValueError: an option has a value outside these.
    """

    choosable: ClassVar[tuple[str, ...]] = ("layers",)

    def __init__(
        self,
        variant: str = "paper",
        layers: Sequence[int | str] | None = None,
        heads: Sequence[int] | Sequence[Sequence[int]] | None = None,
        directions: Sequence[str] = DIRECTIONS,
        weights: Mapping[str, float] | None = None,
        target: str = "uniform",
        normalization: str = "linear",
        box_weight: float = 0.0,
        box_layer: int = 0,
    ):
        check_choice("variant", variant, ("paper", "released"))
        check_choice("target", target, ("uniform", "any"))
        check_choice("normalization", normalization, ("linear", "softmax"))
        for direction in (*directions, *(weights or {})):
            check_choice("direction", direction, DIRECTIONS)
        if variant == "released" and target != "uniform":
            raise ValueError("target='any' exists in the paper variant only: the released code has one region a token")
        self.variant, self.target, self.normalization = variant, target, normalization
        self.boxes = BoxLoss(box_weight, box_layer)
        self.pairs = _check_pairs(heads, layers) if _are_pairs(heads) else None
        if self.pairs is not None and "heads" not in self.choosable:
            raise ValueError(
                f"heads={heads}: {self.name} averages heads and can't supervise some of a layer: give layers"
            )
        chosen = None if self.pairs is None else [layer for layer, _ in self.pairs]
        self.layers: tuple[Any, ...] | None = _check_indices("layers", layers if chosen is None else chosen)
        self.heads = None if self.pairs is not None else _check_indices("heads", heads)
        self.directions = tuple(direction for direction in DIRECTIONS if direction in directions)
        if not self.directions:
            raise ValueError(f"directions is empty; expected at least one of {', '.join(DIRECTIONS)}")
        self.weights = {direction: float((weights or {}).get(direction, 1.0)) for direction in self.directions}

    @property
    def model_config(self) -> dict[str, Any]:
        return self.boxes.model_config

    def prepare(self, model: Any) -> None:
        """Sets the supervised attention function on the model, see `supervise`.

        Raises:
            ValueError: the model's back end has no supervised twin, the model does not use transformers'
                `AttentionInterface`, it has fewer layers or heads than are to be supervised, or no box head where it
                needs one.
        """
        self.boxes.check_model(model)
        self._check_calls(supervise(model).calls, type(model).__name__)

    def _check_calls(self, calls: Sequence[AttentionCall], model_name: str) -> None:
        """Numbers the named layers; refuses layers, heads and directions that no call has."""
        names = layer_names(calls)
        unknown = [layer for layer in self.layers or () if isinstance(layer, str) and layer not in names]
        if unknown:
            raise ValueError(f"layers {unknown} are to be supervised, but {model_name} has {', '.join(names)}")
        if self.layers is not None:
            numbers = {names.index(layer) if isinstance(layer, str) else layer for layer in self.layers}
            self.layers = tuple(sorted(numbers))
        fewest = min((call.num_heads for call in calls), default=0)
        for option, size in (("layers", len(names)), ("heads", fewest)):
            beyond = [index for index in self._indices(option) if index >= size]
            if beyond:
                raise ValueError(f"{option} {beyond} are to be supervised, but {model_name} has {size} {option}")
        for direction in self.directions:
            if not any(direction in call.directions for call in calls):
                raise ValueError(f"{model_name} has no attention for the direction {direction!r}: give directions")

    def _indices(self, option: str) -> Sequence[int]:
        if option == "heads" and self.pairs is not None:
            return sorted({head for _, head in self.pairs})
        return getattr(self, option) or ()

    def prepare_batch(self, batch: Batch) -> dict[str, Any]:
        aligned = self._align(batch)
        targets = {name: grounding_targets(aligned, batch, name) for name in self.directions}
        made = {TARGETS: {name: vars(target) for name, target in targets.items()}}
        return {**made, **self.boxes.prepare_batch(aligned, batch)}

    def targets(self, batch: Batch) -> dict[str, GroundingTargets]:
        """Direction -> the rows, columns and gold columns that the batch's grounding gives."""
        return {name: GroundingTargets(**target) for name, target in self._prepared(batch)[TARGETS].items()}

    def _prepared(self, batch: Batch) -> Batch:
        """The batch, with what `prepare_batch` adds."""
        return batch if TARGETS in batch else self.prepare_batch(batch)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        prepared = self._prepared(batch)
        counts = {name: (target["rows"] >= 0).sum() for name, target in prepared[TARGETS].items()}
        return {**counts, **self.boxes.counts(prepared)}

    def losses(self, outputs: Any, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        prepared = {**batch, **self._prepared(batch)}
        return {**self.attention_losses(outputs, prepared), **self.boxes.losses(outputs, prepared)}

    @abstractmethod
    def attention_losses(self, outputs: Any, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Direction -> (sum, count)."""

    def get_config_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "variant": self.variant,
            "layers": None if self.layers is None or self.pairs is not None else list(self.layers),
            "heads": self._heads_config(),
            "directions": list(self.directions),
            "weights": dict(self.weights),
            "target": self.target,
            "normalization": self.normalization,
            "box_weight": self.boxes.weight,
            "box_layer": self.boxes.layer,
        }

    def _heads_config(self) -> list[Any] | None:
        if self.pairs is not None:
            return [list(pair) for pair in self.pairs]
        return None if self.heads is None else list(self.heads)

    def rows_loss(self, pair: AttentionPair, targets: VisibleTargets, direction: str) -> Tensor:
        """(B, Q): one layer's loss of each row, averaged over its heads; 0 for rows that see no gold column."""
        if self.variant == "released":
            rows_loss = released_text_rows if direction == "text_to_region" else released_region_rows
            return rows_loss(pair, targets, self.normalization)
        return uniform_rows(pair, targets) if self.target == "uniform" else any_rows(pair, targets)

    def maps_losses(
        self, maps: Sequence[Tensor], batch: Batch, streams: Sequence[tuple[str, str]] | None = None
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """The attention losses from full maps, such as an eager model's.

        Args:
            maps: one (B, H, S, K) tensor for each supervised call, with the supervised heads, non-negative; 0 where
                the mask hides a column.
            batch: as for `losses`.
            streams: of each map the stream of its queries and of its keys, see `AttentionCall`; one sequence of text
                and regions when not given.
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
        self, pairs: Mapping[str, Sequence[AttentionPair]], targets: Mapping[str, GroundingTargets]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Direction -> (sum over its rows of the mean over all heads, count of rows).

        Args:
            pairs: direction -> what each call that answers it reports.
            targets: direction -> its rows, columns and gold columns.

        A gold column that the mask hides from a row takes no part. A layer that hides all of them takes no part in
        the row's mean, and a row that sees none in any layer is not counted: nothing can teach it.
        """
        return {name: self._sum_rows(pairs[name], target, name) for name, target in targets.items()}

    def _sum_rows(
        self, pairs: Sequence[AttentionPair], targets: GroundingTargets, direction: str
    ) -> tuple[Tensor, Tensor]:
        visible = [visible_targets(pair, targets) for pair in pairs]
        rows = torch.stack([each.rows for each in visible])  # (L, B, Q)
        heads = pairs[0][0].new_tensor([pair[0].shape[1] for pair in pairs])
        # 1 where every layer sees a gold column.
        scale = heads.sum() / (heads[:, None, None] * rows).sum(0).clamp(min=1)
        losses = [self.rows_loss(pair, each, direction) for pair, each in zip(pairs, visible, strict=True)]
        total = (torch.stack([(loss * scale).sum() for loss in losses]) * (heads / heads.sum())).sum()
        return self.weights[direction] * total, rows.any(0).sum()

    def _align(self, batch: Batch) -> Tensor:
        return first_region(align(batch)) if self.variant == "released" else align(batch)


def ask_for_rows(targets: Mapping[str, GroundingTargets], batch: Batch) -> dict[str, Any]:
    """The keyword argument that asks a model for these rows.

    Our models take `grounding_queries`, token and region indices, and know where those are. Any other model takes
    `attention_queries`, sequence positions: give `text_positions` and `region_positions` in the batch.
    """
    if batch.get("text_positions") is not None:
        return {"attention_queries": tuple(sequence_pairs(targets, batch).values())}
    return {"grounding_queries": {name: (target.rows, target.columns) for name, target in targets.items()}}


def observed_layers(outputs: Any) -> tuple[SupervisedAttention, ...]:
    """What the supervised layers reported, in order.

    Raises:
        ValueError: the outputs hold none, or a loss of it would not reach the model's weights though the outputs do.
    """
    layers = getattr(outputs, "attentions", None) or ()
    if not layers or not all(isinstance(layer, SupervisedAttention) for layer in layers):
        raise ValueError(
            "the outputs hold no supervised attention: call method.prepare(model) once, and give the model "
            "**method.forward_kwargs(batch)"
        )
    if torch.is_grad_enabled() and not _require_grad(layers) and _require_grad(list(vars(outputs).values())):
        raise ValueError(
            "supervised attention has no gradient, though the model's outputs have one: re-entrant gradient "
            'checkpointing loses it. Give gradient_checkpointing_kwargs={"use_reentrant": False}. Or all weights '
            "below the supervised layers are frozen: train some of them, or supervise none"
        )
    return tuple(layers)


def _require_grad(nested: Any) -> bool:
    """Whether some tensor has a gradient."""
    return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_iter(nested))


def check_choice(option: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{option}={value!r} is unknown; expected one of {', '.join(choices)}")


def _are_pairs(heads: Sequence[Any] | None) -> bool:
    return heads is not None and any(isinstance(head, Sequence) for head in heads)


def _check_pairs(pairs: Any, layers: Any) -> tuple[tuple[int, int], ...]:
    """(layer, head) pairs, each once, in order."""
    if layers is not None:
        raise ValueError(f"heads={list(pairs)} are pairs of layer and head: leave layers={list(layers)} out")
    for pair in pairs:
        if not isinstance(pair, Sequence) or len(pair) != 2 or not all(type(i) is int and i >= 0 for i in pair):
            raise ValueError(f"heads={list(pairs)}: {pair!r} is no pair of layer and head, each from 0 on")
    return tuple(sorted({(layer, head) for layer, head in pairs}))


def _check_indices(option: str, indices: Sequence[Any] | None) -> tuple[Any, ...] | None:
    """Each index once, in order; names of layers, which a model gives numbers, behind them."""
    if indices is None:
        return None
    numbers, names = ([i for i in indices if isinstance(i, str) is named] for named in (False, True))
    if not indices or any(index < 0 for index in numbers):
        raise ValueError(f"{option}={list(indices)}: expected indices from 0 on, at least one, or null for all")
    return (*sorted(set(numbers)), *dict.fromkeys(names))

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What the layers of a forward pass share when they report the attention of chosen rows.

All layers receive the same rows, columns and mask. Where these are in memory, and which scores the mask hides, is
found once for a forward pass.

Shape letters: B batch, H heads, N query positions, M key positions, Q queried rows, K queried columns, d head width.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .row_states import RowStates, layers_at_once
from .score_masks import ScoreMask, mask_columns, mask_whole_rows

AttentionQuery = tuple[Tensor, Tensor]

# Forward passes differ in their masks. A pass needs a plan for each kind of mask, so this is enough for one.
_MOST_PLANS = 8


class Places(NamedTuple):
    """Positions on the query or the key axis, to read from states."""

    positions: list[Tensor]  # one (B, Q) int64 tensor for each query, from 0 on; padding reads position 0
    flat: Tensor  # (sum of all B * Q,) int64, b * N + position, the queries in order
    shapes: list[torch.Size]  # (B, Q) of each query

    def read(self, states: Tensor) -> list[Tensor]:
        """(B, H, N, d) -> (B, H, Q, d) of each query; or both with L layers in front."""
        by_position = states.transpose(-3, -2)
        if not by_position.is_contiguous():
            heads, width = states.shape[1::2]
            return [states.gather(2, each[:, None, :, None].expand(-1, heads, -1, width)) for each in self.positions]
        # All numbers of a position are one row here: whole rows are copied, which is several times as fast on a CPU,
        # and the gradients of all queries are added to the states at once.
        chosen = by_position.flatten(-4, -3).index_select(-3, self.flat)
        parts = zip(chosen.split([each.numel() for each in self.shapes], -3), self.shapes, strict=True)
        return [part.unflatten(-3, each).transpose(-3, -2) for part, each in parts]


class RowPlan(NamedTuple):
    """What is known of the queries of an attention call before any score is computed."""

    rows: Places  # the rows, on the query axis
    columns: Places  # the columns, on the key axis
    padded: list[Tensor]  # (B, 1, 1, K) bool for each query, True for padded columns
    # for each query the mask of its columns, padded ones hidden; or, if whole rows are scored, the mask of all keys
    masks: list[ScoreMask]


class RowPlans:
    """The plans of one forward pass (`attention_plans` of the model), each made by the first layer that needs it."""

    def __init__(self) -> None:
        # The tensors are kept with the plan: an id is unique while its object lives.
        self._known: dict[Any, tuple[Any, list[int], RowPlan]] = {}

    def find(
        self,
        queries: Sequence[AttentionQuery],
        query_length: int,
        key_length: int,
        mask: Any,
        causal: bool | int,
        whole_rows: bool,
    ) -> RowPlan:
        """Finds the plan of these queries, or makes it; the arguments are those of [`make_plan`]."""
        sources = [*(tensor for pair in queries for tensor in pair), *([] if mask is None else [mask])]
        request = (query_length, key_length, mask, causal, whole_rows)
        if torch.compiler.is_compiling():
            return make_plan(queries, *request)
        key = (*map(id, sources), query_length, key_length, causal, whole_rows)
        if key in self._known:
            _, versions, plan = self._known[key]
            if versions == [each._version for each in sources]:
                return plan
        plan = make_plan(queries, *request)
        # A source without a gradient has another version when it is written to.
        constant = not torch.is_inference_mode_enabled()
        for each in sources:
            constant &= isinstance(each, Tensor) and not each.requires_grad and not each.is_inference()
        if constant:
            if len(self._known) >= _MOST_PLANS:
                self._known.clear()
            self._known[key] = (sources, [each._version for each in sources], plan)
        return plan


def make_plan(
    queries: Sequence[AttentionQuery],
    query_length: int,
    key_length: int,
    mask: Any,
    causal: bool | int,
    whole_rows: bool,
) -> RowPlan:
    """Makes the plan of some queries."""
    rows = _find_places([row for row, _ in queries], query_length)
    columns = _find_places([column for _, column in queries], key_length)
    padded = [(column < 0)[:, None, None] for _, column in queries]
    if whole_rows:
        masks = [mask_whole_rows(mask, row, key_length, causal) for row in rows.positions]
    else:
        parts = zip(rows.positions, columns.positions, padded, strict=True)
        masks = [mask_columns(mask, *part, key_length, causal) for part in parts]
    return RowPlan(rows, columns, padded, masks)


def _find_places(positions: Sequence[Tensor], length: int) -> Places:
    positions = [each.clamp(min=0) for each in positions]
    starts = length * torch.arange(len(positions[0]), device=positions[0].device)[:, None]
    flat = torch.cat([(each + starts).flatten() for each in positions])
    return Places(positions, flat, [each.shape for each in positions])


@dataclass
class UnreadRows:
    """The states of each query of a layer, which [`read_together`] reads for all layers at once.

    Not a tuple: what converts or moves the tensors of outputs leaves these alone, because most rows are not read.
    """

    query: Tensor  # (B, H, N, d)
    key: Tensor  # (B, G, M, d)
    plan: RowPlan
    scaling: float
    softcap: float | None
    requires_grad = True  # without a gradient `room` is 0

    def __iter__(self) -> Iterator[RowStates]:
        read = zip(self.plan.rows.read(self.query), self.plan.columns.read(self.key), self.plan.masks, strict=True)
        for rows, keys, mask in read:
            yield RowStates(rows, keys, self.scaling, mask, self.softcap)

    def room(self) -> int:
        """How many layers are read at once; 0 if most positions are not read: then each layer is read alone."""
        read = len(self.plan.rows.flat) + len(self.plan.columns.flat)
        whole = self.query.shape[2] + self.key.shape[2]
        if not self.query.requires_grad or 2 * read < len(self.query) * whole:
            return 0
        return layers_at_once(self.query.numel() + self.key.numel(), self.key.device)


def _kind(layer: UnreadRows) -> tuple[Any, ...]:
    return id(layer.plan), layer.query.shape, layer.key.shape, layer.scaling, layer.softcap


def read_together(layers: Iterable[UnreadRows]) -> Iterator[list[RowStates]]:
    """Reads layers; yields the states of each query, (L, B, H, Q, d), of as many layers as have room."""
    for _, alike in groupby(layers, _kind):
        group = [*alike]
        room = group[0].room()
        for start in range(0, len(group), room):
            some = group[start : start + room]
            query = torch.stack([layer.query.transpose(1, 2) for layer in some]).transpose(2, 3)
            key = torch.stack([layer.key.transpose(1, 2) for layer in some]).transpose(2, 3)
            yield [*replace(group[0], query=query, key=key)]

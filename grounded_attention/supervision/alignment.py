# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""From the two tensors that describe grounding to the attention rows, columns and targets to supervise.

Shape letters: B batch, T text, R regions, P phrases, Q asked rows, K asked columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# In the order in which the model reports them.
DIRECTIONS = ("text_to_region", "region_to_text")

# Rows are padded to a multiple of this, so batches differ in few shapes and a compiled model is rarely recompiled.
_ROW_MULTIPLE = 8


@dataclass(frozen=True)
class GroundingTargets:
    """The rows of one direction that have a target.

    Args:
        rows: (B, Q) int64, token indices (text to region) or region indices (region to text), -1 pads.
        columns: (B, K) int64, all regions, the whole image included, or all text tokens; -1 for padded ones.
        gold: (B, Q, K) bool, the columns a row should attend to; at least one in every row that is no pad.
    """

    rows: Tensor
    columns: Tensor
    gold: Tensor


def align(batch: Mapping[str, Any]) -> Tensor:
    """Word x region alignment (B, T, R), bool: some phrase has this token and this region.

    Args:
        batch: `phrase_mask` (B, P, T) and `phrase_regions` (B, P, R), bool or 0/1. Padded tokens and regions are taken
            out by the entries that the batch has of `attention_mask` (B, T), `region_attention_mask` (B, R), and
            `text_positions` (B, T) and `region_positions` (B, R), where -1 is padding. Beside `text_positions`
            `attention_mask` may be the model's own (B, N), over its whole sequence.

    Raises:
        ValueError: a mask fits neither.
    """
    phrase_mask, phrase_regions = batch["phrase_mask"].float(), batch["phrase_regions"].float()
    aligned = (phrase_mask.transpose(1, 2) @ phrase_regions) > 0
    tokens, regions = token_mask(batch), region_mask(batch)
    if tokens is not None:
        aligned = aligned & tokens[:, :, None]
    return aligned if regions is None else aligned & regions[:, None]


def token_mask(batch: Mapping[str, Any]) -> Tensor | None:
    """(B, T) bool, False for padded tokens; None where the batch does not tell."""
    return _valid(batch, "attention_mask", "text_positions", batch["phrase_mask"].shape[2])


def region_mask(batch: Mapping[str, Any]) -> Tensor | None:
    """(B, R) bool, False for padded regions; None where the batch does not tell."""
    return _valid(batch, "region_attention_mask", "region_positions", batch["phrase_regions"].shape[2])


def _valid(batch: Mapping[str, Any], mask_name: str, positions_name: str, length: int) -> Tensor | None:
    mask, positions = batch.get(mask_name), batch.get(positions_name)
    if mask is not None and mask.shape[1] != length:
        if positions is None:
            raise ValueError(
                f"{mask_name} has {mask.shape[1]} columns and the phrases {length}: give the mask of these {length} "
                f"columns, or {positions_name} beside the mask of the model's whole sequence"
            )
        mask = mask.gather(1, positions.clamp(min=0))
    if positions is None:
        return None if mask is None else mask.bool()
    return positions >= 0 if mask is None else mask.bool() & (positions >= 0)


def first_region(aligned: Tensor) -> Tensor:
    """Keeps one region a token, the first (VGP public code: a token has a single region tag): (B, T, R) bool."""
    return aligned & (aligned.cumsum(-1) == 1)


def grounding_targets(aligned: Tensor, batch: Mapping[str, Any], direction: str) -> GroundingTargets:
    """Rows, columns and targets of one direction.

    Args:
        aligned: (B, T, R) bool, see `align`.
        batch: as for `align`.
        direction: "text_to_region": rows are the tokens with a region, columns the regions. "region_to_text": rows are
            the regions with a token, columns the tokens.
    """
    valid = region_mask(batch)
    if direction == "region_to_text":
        aligned, valid = aligned.transpose(1, 2), token_mask(batch)
    rows = _row_indices(aligned.any(-1))
    gold = aligned.gather(1, rows.clamp(min=0)[..., None].expand(-1, -1, aligned.shape[2]))
    columns = torch.arange(aligned.shape[2], device=aligned.device).expand(len(aligned), -1)
    if valid is not None:
        columns = columns.masked_fill(~valid, -1)
    return GroundingTargets(rows, columns, gold & (rows >= 0)[..., None])


def _row_indices(wanted: Tensor) -> Tensor:
    """(B, X) bool -> (B, Q) int64 indices of the wanted places in order, -1 pads."""
    most = int(wanted.sum(1).max()) if len(wanted) else 0
    width = min(wanted.shape[1], _ROW_MULTIPLE * max(1, -(-most // _ROW_MULTIPLE)))
    order = wanted.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :width]
    return order.masked_fill(~wanted.gather(1, order), -1)


def sequence_pairs(
    targets: Mapping[str, GroundingTargets], batch: Mapping[str, Any]
) -> dict[str, tuple[Tensor, Tensor]]:
    """The rows (B, Q) and columns (B, K) of each direction as sequence positions, -1 pads.

    Args:
        targets: direction -> targets.
        batch: `text_positions` (B, T) and `region_positions` (B, R) int64, where each token and region is in the
            model's sequence. Without them the sequence is [text T][regions R] and whatever follows.
    """
    text, regions = _positions(batch)
    places = {"text_to_region": (text, regions), "region_to_text": (regions, text)}
    return {
        direction: (
            locate_indices(target.rows, places[direction][0]),
            locate_indices(target.columns, places[direction][1]),
        )
        for direction, target in targets.items()
    }


def _positions(batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    if batch.get("text_positions") is not None:
        return batch["text_positions"], batch["region_positions"]
    size, _, text_length = batch["phrase_mask"].shape
    everything = torch.arange(text_length + batch["phrase_regions"].shape[2], device=batch["phrase_mask"].device)
    everything = everything.expand(size, -1)
    return everything[:, :text_length], everything[:, text_length:]


def locate_indices(indices: Tensor, positions: Tensor) -> Tensor:
    """Indices (B, X) of tokens or regions -> where those are in the sequence, by `positions` (B, N); -1 stays -1."""
    return positions.gather(1, indices.clamp(min=0)).masked_fill(indices < 0, -1)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Turns the two tensors of grounding into the attention rows, columns and targets to supervise.

Shape letters: B batch, T text, R regions, P phrases, Q queried rows, K queried columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grounded_attention.utils.named_types import Batch

# In the order in which the model reports them.
DIRECTIONS = ("text_to_region", "region_to_text")

# Rows are padded to a multiple of this: torch.compile compiles a size of 1 apart. More padding takes time.
_ROW_MULTIPLE = 2


@dataclass(frozen=True)
class GroundingTargets:
    """The rows of one direction that have a target."""

    rows: Tensor  # (B, Q) int64, token indices (text to region) or region indices (region to text); -1 is padding
    columns: Tensor  # (B, K) int64, all regions including the whole image, or all text tokens; -1 is padding
    # (B, Q, K) bool, the columns that a row should attend to; at least one in each row that is not padding
    gold: Tensor


def require(batch: Batch, names: Sequence[str], why: str) -> None:
    """`ValueError` if a batch lacks one of these entries."""
    missing = [name for name in names if batch.get(name) is None]
    if missing:
        raise ValueError(f"the batch has no {missing[0]}: {why}")


def grounded_phrases(batch: Batch) -> tuple[Tensor, Tensor]:
    """`phrase_mask` and `phrase_regions` of a batch; `ValueError` if its processor was given none."""
    why = "give phrases, and images or regions, to the processor"
    require(batch, ("phrase_mask", "phrase_regions"), why)
    return batch["phrase_mask"], batch["phrase_regions"]


def align(batch: Batch) -> Tensor:
    """Aligns tokens with regions: a pair is True if some phrase contains both the token and the region."""
    phrase_mask, phrase_regions = (each.float() for each in grounded_phrases(batch))
    aligned = (phrase_mask.transpose(1, 2) @ phrase_regions) > 0
    tokens = token_mask(batch)
    regions = region_mask(batch)
    if tokens is not None:
        aligned = aligned & tokens[:, :, None]
    if regions is None:
        return aligned
    return aligned & regions[:, None]


def token_mask(batch: Batch) -> Tensor | None:
    """Returns (B, T) bool, False for padded tokens; None if the batch has neither mask nor positions of tokens."""
    return _valid(batch, "attention_mask", "text_positions", batch["phrase_mask"].shape[2])


def region_mask(batch: Batch) -> Tensor | None:
    """Returns (B, R) bool, False for padded regions; None if the batch has neither mask nor positions of regions."""
    return _valid(batch, "region_attention_mask", "region_positions", batch["phrase_regions"].shape[2])


def _valid(batch: Batch, mask_name: str, positions_name: str, length: int) -> Tensor | None:
    mask = batch.get(mask_name)
    positions = batch.get(positions_name)
    if mask is not None and mask.shape[1] != length:
        if positions is None:
            raise ValueError(
                f"{mask_name} has {mask.shape[1]} columns, but the phrases have {length}: give a mask of {length} "
                f"columns, or add {positions_name} if this is the mask of the whole sequence of the model"
            )
        mask = mask.gather(1, positions.clamp(min=0))
    if positions is None:
        if mask is None:
            return None
        return mask.bool()
    if mask is None:
        return positions >= 0
    return mask.bool() & (positions >= 0)


def gather_rows(states: Tensor, places: Tensor) -> Tensor:
    """The rows (B, Q, D) of (B, L, D) at places (B, Q); row 0 for padding (-1)."""
    index = places.clamp(min=0)[..., None]
    return states.gather(1, index.expand(-1, -1, states.shape[2]))


def grounding_targets(aligned: Tensor, batch: Batch, direction: str) -> GroundingTargets:
    """Finds the rows, columns and targets of one direction."""
    valid = region_mask(batch)
    if direction == "region_to_text":
        aligned = aligned.transpose(1, 2)
        valid = token_mask(batch)
    rows = row_indices(aligned.any(-1))
    gold = gather_rows(aligned, rows)
    columns = torch.arange(aligned.shape[2], device=aligned.device).expand(len(aligned), -1)
    if valid is not None:
        columns = columns.masked_fill(~valid, -1)
    return GroundingTargets(rows, columns, gold & (rows >= 0)[..., None])


def row_indices(wanted: Tensor) -> Tensor:
    """(B, X) bool -> (B, Q) int64, the indices of the True values in order; -1 is padding."""
    most = 0
    if len(wanted):
        most = int(wanted.sum(1).max())
    width = min(wanted.shape[1], _ROW_MULTIPLE * max(1, -(-most // _ROW_MULTIPLE)))
    order = wanted.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :width]
    return order.masked_fill(~wanted.gather(1, order), -1)


def sequence_pairs(targets: Mapping[str, GroundingTargets], batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
    """Converts the rows and columns of each direction to positions in the sequence of the model."""
    text, regions = _positions(batch)
    places = {"text_to_region": (text, regions), "region_to_text": (regions, text)}
    pairs = {}
    for direction, target in targets.items():
        pairs[direction] = (
            locate_indices(target.rows, places[direction][0]),
            locate_indices(target.columns, places[direction][1]),
        )
    return pairs


def _positions(batch: Batch) -> tuple[Tensor, Tensor]:
    if batch.get("text_positions") is not None:
        return batch["text_positions"], batch["region_positions"]
    size, _, text_length = batch["phrase_mask"].shape
    everything = torch.arange(text_length + batch["phrase_regions"].shape[2], device=batch["phrase_mask"].device)
    everything = everything.expand(size, -1)
    return everything[:, :text_length], everything[:, text_length:]


def locate_indices(indices: Tensor, positions: Tensor) -> Tensor:
    """Converts indices (B, X) of tokens or regions to sequence positions with `positions` (B, N); -1 stays -1."""
    return positions.gather(1, indices.clamp(min=0)).masked_fill(indices < 0, -1)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What the masks of all back ends do to the scores of chosen rows.

Shape letters: B batch, H heads, N query positions, M key positions, Q queried rows, K queried columns.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Score of masked and padded columns. It is finite, so sums and gradients stay finite; its exponential is 0.
LOWEST_SCORE = -1e9


class ScoreMask(NamedTuple):
    """What a mask does to scores (B, H, Q, M)."""

    hidden: Tensor | None  # (B or 1, 1 or H, 1 or Q, M) bool, True for scores that become -1e9; None if there are none
    bias: Tensor | None  # of the same shape, added to the scores before that; None if nothing is added

    def apply(self, scores: Tensor) -> Tensor:
        """Returns the masked scores, a tensor of the same shape."""
        return self.hide(scores if self.bias is None else scores + self.bias)

    def hide(self, scores: Tensor) -> Tensor:
        """Returns the scores, or log-probabilities, with -1e9 where they are hidden."""
        if self.hidden is None:
            return scores
        return scores.masked_fill(self.hidden, LOWEST_SCORE)

    def offsets(self) -> Tensor:
        """Returns what to add to scores, float32: the bias, and -1e9 where they are hidden (something must be)."""
        assert self.hidden is not None
        if self.bias is None:
            return self.hidden * LOWEST_SCORE
        return torch.where(self.hidden, LOWEST_SCORE, self.bias.float())

    def select_heads(self, heads: Sequence[int]) -> "ScoreMask":
        """Returns the mask of the scores of some heads."""
        return ScoreMask(*(part if part is None or part.shape[1] == 1 else part[:, heads] for part in self))


class BiasedMask(NamedTuple):
    """The mask of a back end, and what is added to the scores beside it: (B or 1, H, N, M), of relative positions."""

    mask: Any
    bias: Tensor


def mask_whole_rows(mask: Any, rows: Tensor, key_length: int, causal: bool | int) -> ScoreMask:
    """Finds what a mask does to the scores of rows (B, Q) against all keys; see [`mask_of_rows`] for the arguments."""
    return _split_mask(mask_of_rows(mask, rows, key_length, causal))


def mask_columns(
    mask: Any, rows: Tensor, columns: Tensor, padded: Tensor, key_length: int, causal: bool | int
) -> ScoreMask:
    """Finds what a mask does to the scores of rows (B, Q) against columns (B, K); see [`mask_of_rows`].

    Columns are int64, from 0 on; those that are `padded` (B, 1, 1, K) are hidden too.
    """
    of_rows = mask_of_rows(mask, rows, key_length, causal)
    hidden, bias = _split_mask(None if of_rows is None else gather_columns(of_rows, columns))
    return ScoreMask(padded if hidden is None else padded | hidden, bias)


def gather_columns(scores: Tensor, columns: Tensor) -> Tensor:
    """(..., B or 1, H, Q, M) at columns (B, K), from 0 on -> (..., B, H, Q, K)."""
    shape = (*scores.shape[:-4], len(columns), *scores.shape[-3:-1], -1)
    return scores.expand(shape).gather(-1, columns[:, None, None].expand(shape))


def is_hidden(scores: Tensor) -> Tensor:
    """Returns a bool tensor of the same shape: True for scores or log-probabilities of padded or masked columns."""
    return scores <= LOWEST_SCORE / 2


def _split_mask(mask: Tensor | None) -> ScoreMask:
    """Converts a bool (True attends) or additive mask of any shape."""
    if mask is None:
        return ScoreMask(None, None)
    if mask.dtype == torch.bool:
        return ScoreMask(~mask, None)
    # Additive masks hide with the lowest number of their data type, which is only -65504 in float16.
    hidden = mask <= max(LOWEST_SCORE, torch.finfo(mask.dtype).min) / 2
    return ScoreMask(hidden, mask.masked_fill(hidden, 0.0))


def mask_of_rows(mask: Any, rows: Tensor, key_length: int, causal: bool | int) -> Tensor | None:
    """Converts the mask of a back end to the mask of some rows.

    `causal` is True if a row sees the keys up to its own position, or how many of these it sees at most.
    """
    if isinstance(mask, BiasedMask):
        visible = mask_of_rows(mask.mask, rows, key_length, causal)
        bias = mask_of_rows(mask.bias, rows, key_length, causal)
        assert bias is not None
        if visible is not None and visible.dtype == torch.bool:
            return bias.masked_fill(~visible, torch.finfo(bias.dtype).min)
        if visible is None:
            return bias
        return bias + visible
    if isinstance(mask, Tensor) and mask.dim() == 4:
        mask = mask[..., :key_length]
        if mask.shape[2] == 1:
            return mask
        mask = mask.expand(max(len(mask), len(rows)), -1, -1, -1)
        index = rows[:, None, :, None].expand(len(mask), mask.shape[1], -1, key_length)
        return mask.gather(2, index)
    keys = torch.arange(key_length, device=rows.device)
    if hasattr(mask, "mask_mod"):  # FlexAttention's BlockMask: a function of indices
        batch = torch.arange(mask.shape[0], device=rows.device)[:, None, None, None]
        return mask.mask_mod(batch, torch.zeros_like(batch), rows[:, None, :, None], keys)
    padding = None
    if mask is not None:
        padding = mask[:, None, None, :key_length].bool()  # FlashAttention's (B, M)
    if not causal:
        return padding
    past = keys <= rows[:, None, :, None]
    if causal is not True:
        past &= keys > rows[:, None, :, None] - causal
    if padding is None:
        return past
    return past & padding

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Losses on the attention of chosen rows, which comes from the attention function or from full maps.

Each loss takes the attention of one or several layers, (L, B, H, Q, K), and returns one number per row, (L, B, Q),
averaged over heads; it is 0 for rows that see no gold column. Attention to columns that are not visible is not read.

Shape letters: L layers, B batch, H heads, N sequence, Q queried rows, K queried columns.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .row_states import AttentionPair
from .score_masks import LOWEST_SCORE

# Added before logarithms in the VGP public code.
_EPSILON = 1e-6


def from_attention_maps(maps: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Converts attention maps to a pair like those of `SupervisedAttention.pairs`."""
    index = rows.clamp(min=0)[:, None, :, None].expand(-1, maps.shape[1], -1, maps.shape[3])
    selected = maps.gather(2, index)
    index = columns.clamp(min=0)[:, None, None].expand(-1, *selected.shape[1:3], -1)
    selected = selected.gather(3, index).float()
    hidden = (selected <= 0) | (columns < 0)[:, None, None]
    logs = selected.clamp(min=torch.finfo(torch.float32).tiny).log().masked_fill(hidden, LOWEST_SCORE)
    return logs.log_softmax(-1).masked_fill(hidden, LOWEST_SCORE), logs.logsumexp(-1)


class VisibleTargets(NamedTuple):
    """The columns of each row that are visible to all heads of a layer."""

    # (1 or L, B, 1 or Q, K) bool, False for padded columns and for columns that the mask hides from the row
    columns: Tensor
    gold: Tensor  # (1 or L, B, Q, K) bool, the gold columns among them; rows without gold columns have no loss

    @property
    def rows(self) -> Tensor:
        """(1 or L, B, Q) bool, True for rows that see a gold column."""
        return self.gold.any(-1)


def uniform_rows(pair: AttentionPair, targets: VisibleTargets) -> Tensor:
    """Computes the cross-entropy with the uniform distribution over the gold columns (VGP paper, equation 7)."""
    weights = targets.gold / targets.gold.sum(-1, keepdim=True).clamp(min=1)
    return -(pair[0].mean(2) * weights).sum(-1)


def sum_rows(pair: AttentionPair, targets: VisibleTargets) -> Tensor:
    """Computes -log of the attention to each gold column, added up: equation 7 as it is written."""
    return -(pair[0].mean(2) * targets.gold).sum(-1)


def any_rows(pair: AttentionPair, targets: VisibleTargets) -> Tensor:
    """Computes -log of the total attention to the gold columns, so attention to any of them is enough."""
    gold = pair[0].masked_fill(~targets.gold[:, :, None], LOWEST_SCORE)
    return -gold.logsumexp(-1).mean(2) * targets.rows


def released_text_rows(pair: AttentionPair, targets: VisibleTargets, normalization: str) -> Tensor:
    """Computes the negative log-likelihood of the region of a token, as in the VGP public code."""
    logs = _released_logs(pair, targets, normalization)
    return -(logs * targets.gold[:, :, None]).sum(-1).mean(2)


def released_region_rows(pair: AttentionPair, targets: VisibleTargets, normalization: str) -> Tensor:
    """Computes a binary cross-entropy on log-probabilities instead of logits, divided by the number of text tokens.

    This is the loss of the VGP public code. The sigmoid of log p is p / (1 + p), so even a perfect row has a loss
    above 0. Equation 7 of the paper is a cross-entropy instead ([`uniform_rows`]).
    """
    logs = _released_logs(pair, targets, normalization)
    gold = targets.gold[:, :, None].to(logs.dtype).expand_as(logs)
    losses = F.binary_cross_entropy_with_logits(logs, gold, reduction="none") * targets.columns[:, :, None]
    per_row = losses.sum(-1).mean(2) / targets.columns.sum(-1).clamp(min=1)
    return per_row * targets.rows


def _released_logs(pair: AttentionPair, targets: VisibleTargets, normalization: str) -> Tensor:
    """(L, B, H, Q, K): for "linear" log(eps + a / (sum a + eps)), for "softmax" the log-softmax of probabilities a."""
    log_alpha, log_share = pair
    assert log_share is not None  # `released` asks for it
    alpha = (log_alpha + log_share[..., None]).exp()
    if normalization == "linear":
        return (_EPSILON + alpha / (alpha.sum(-1, keepdim=True) + _EPSILON)).log()
    return alpha.masked_fill(~targets.columns[:, :, None], LOWEST_SCORE).log_softmax(-1)

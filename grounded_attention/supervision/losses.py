# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pure losses on the attention of chosen rows, whatever it comes from: the attention function or full maps.

Each returns one number a row, (B, Q), averaged over heads; rows that see no gold column give 0.

Shape letters: B batch, H heads, N sequence, Q asked rows, K asked columns.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .alignment import GroundingTargets
from .attention_function import LOWEST_SCORE, AttentionPair, is_hidden

# Of the VGP public code's logarithms.
_EPSILON = 1e-6


def from_attention_maps(maps: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Attention maps -> what `SupervisedAttention.pairs` holds.

    Args:
        maps: (B, H, N, M) non-negative: attention probabilities, or a rollout with H = 1. An exact 0 is taken for a
            column that the mask hides: a softmax gives 0 to nothing else short of scores 100 apart.
        rows: (B, Q) int64 positions, -1 pads.
        columns: (B, K) int64 positions, -1 pads.

    Returns:
        `(log_alpha (B, H, Q, K), log_share (B, H, Q))`, float32.
    """
    index = rows.clamp(min=0)[:, None, :, None].expand(-1, maps.shape[1], -1, maps.shape[3])
    asked = maps.gather(2, index)
    index = columns.clamp(min=0)[:, None, None].expand(-1, *asked.shape[1:3], -1)
    asked = asked.gather(3, index).float()
    hidden = (asked <= 0) | (columns < 0)[:, None, None]
    logs = asked.clamp(min=torch.finfo(torch.float32).tiny).log().masked_fill(hidden, LOWEST_SCORE)
    return logs.log_softmax(-1).masked_fill(hidden, LOWEST_SCORE), logs.logsumexp(-1)


class VisibleTargets(NamedTuple):
    """The columns of each row that every head of a layer sees.

    Args:
        columns: (B, Q, K) bool, without padded columns and without those that the mask hides from the row.
        gold: (B, Q, K) bool, the gold columns among them; none in rows that have no part in the loss.
    """

    columns: Tensor
    gold: Tensor

    @property
    def rows(self) -> Tensor:
        """(B, Q) bool: the rows that see a gold column."""
        return self.gold.any(-1)


def visible_targets(pair: AttentionPair, targets: GroundingTargets) -> VisibleTargets:
    """What a layer can be asked of the targets: a causal order or a sliding window may hide some of them."""
    columns = ~is_hidden(pair[0].amin(1))  # padded columns are hidden too
    return VisibleTargets(columns, targets.gold & columns)


def uniform_rows(pair: AttentionPair, targets: VisibleTargets) -> Tensor:
    """Cross-entropy with the uniform distribution over a row's gold columns (VGP paper, equation 7)."""
    weights = targets.gold / targets.gold.sum(-1, keepdim=True).clamp(min=1)
    return -(pair[0].mean(1) * weights).sum(-1)


def any_rows(pair: AttentionPair, targets: VisibleTargets) -> Tensor:
    """-log of the attention that the gold columns receive together: any of them will do."""
    gold = pair[0].masked_fill(~targets.gold[:, None], LOWEST_SCORE)
    return -gold.logsumexp(-1).mean(1) * targets.rows


def released_text_rows(pair: AttentionPair, targets: VisibleTargets, normalization: str) -> Tensor:
    """Negative log-likelihood of a token's region, as in the VGP public code."""
    logs = _released_logs(pair, targets, normalization)
    return -(logs * targets.gold[:, None]).sum(-1).mean(1)


def released_region_rows(pair: AttentionPair, targets: VisibleTargets, normalization: str) -> Tensor:
    """Binary cross-entropy that takes log-probabilities for logits, over the number of text tokens (VGP public code).

    The sigmoid of log p is p / (1 + p), so even a perfect row keeps a loss; the paper's equation 7 is a cross-entropy
    instead (`uniform_rows`).
    """
    logs = _released_logs(pair, targets, normalization)
    gold = targets.gold[:, None].to(logs.dtype).expand_as(logs)
    losses = F.binary_cross_entropy_with_logits(logs, gold, reduction="none") * targets.columns[:, None]
    per_row = losses.sum(-1).mean(1) / targets.columns.sum(-1).clamp(min=1)
    return per_row * targets.rows


def _released_logs(pair: AttentionPair, targets: VisibleTargets, normalization: str) -> Tensor:
    """(B, H, Q, K): "linear" log(eps + a / (sum a + eps)); "softmax" a log-softmax of the probabilities themselves."""
    log_alpha, log_share = pair
    if log_share is None:
        raise ValueError("the released losses need the share of attention: ask for it with attention_share=True")
    alpha = (log_alpha + log_share[..., None]).exp()
    if normalization == "linear":
        return (_EPSILON + alpha / (alpha.sum(-1, keepdim=True) + _EPSILON)).log()
    return alpha.masked_fill(~targets.columns[:, None], LOWEST_SCORE).log_softmax(-1)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pure losses on the attention of chosen rows, whatever it comes from: the attention function or full maps.

Each returns one number a row, (B, Q), averaged over heads; rows without a target give 0.

Shape letters: B batch, H heads, N sequence, Q asked rows, K asked columns.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from .alignment import GroundingTargets
from .attention import LOWEST_SCORE, AttentionPair

# Of the VGP public code's logarithms.
_EPSILON = 1e-6


def from_attention_maps(maps: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Attention maps -> what `SupervisedAttention.pairs` holds.

    Args:
        maps: (B, H, N, M) non-negative: attention probabilities, or a rollout with H = 1.
        rows: (B, Q) int64 positions, -1 pads.
        columns: (B, K) int64 positions, -1 pads.

    Returns:
        `(log_alpha (B, H, Q, K), log_share (B, H, Q))`, float32.
    """
    index = rows.clamp(min=0)[:, None, :, None].expand(-1, maps.shape[1], -1, maps.shape[3])
    asked = maps.gather(2, index)
    index = columns.clamp(min=0)[:, None, None].expand(-1, *asked.shape[1:3], -1)
    asked = asked.gather(3, index).float()
    logs = asked.clamp(min=torch.finfo(torch.float32).tiny).log()
    logs = logs.masked_fill((columns < 0)[:, None, None], LOWEST_SCORE)
    return logs.log_softmax(-1), logs.logsumexp(-1)


def uniform_rows(pair: AttentionPair, targets: GroundingTargets) -> Tensor:
    """Cross-entropy with the uniform distribution over a row's gold columns (VGP paper, equation 7)."""
    weights = targets.gold / targets.gold.sum(-1, keepdim=True).clamp(min=1)
    return -(pair[0].mean(1) * weights).sum(-1)


def any_rows(pair: AttentionPair, targets: GroundingTargets) -> Tensor:
    """-log of the attention that the gold columns receive together: any of them will do."""
    gold = pair[0].masked_fill(~targets.gold[:, None], LOWEST_SCORE)
    return -gold.logsumexp(-1).mean(1) * targets.gold.any(-1)


def spread_rows(pair: AttentionPair, targets: GroundingTargets) -> Tensor:
    """Cross-entropy with the uniform distribution over all of a row's columns: what label smoothing mixes in."""
    valid = (targets.columns >= 0)[:, None]
    weights = valid / valid.sum(-1, keepdim=True).clamp(min=1) * targets.gold.any(-1, keepdim=True)
    return -(pair[0].mean(1) * weights).sum(-1)


def released_text_rows(pair: AttentionPair, targets: GroundingTargets, normalization: str) -> Tensor:
    """Negative log-likelihood of a token's region, as in the VGP public code."""
    logs = _released_logs(pair, targets, normalization)
    return -(logs * targets.gold[:, None]).sum(-1).mean(1)


def released_region_rows(pair: AttentionPair, targets: GroundingTargets, normalization: str) -> Tensor:
    """Binary cross-entropy that takes log-probabilities for logits, over the number of text tokens (VGP public code).

    The sigmoid of log p is p / (1 + p), so even a perfect row keeps a loss; the paper's equation 7 is a cross-entropy
    instead (`uniform_rows`).
    """
    logs = _released_logs(pair, targets, normalization)
    gold = targets.gold[:, None].to(logs.dtype).expand_as(logs)
    valid = targets.columns >= 0
    losses = F.binary_cross_entropy_with_logits(logs, gold, reduction="none") * valid[:, None, None]
    per_row = losses.sum(-1).mean(1) / valid.sum(-1, keepdim=True).clamp(min=1)
    return per_row * (targets.rows >= 0)


def _released_logs(pair: AttentionPair, targets: GroundingTargets, normalization: str) -> Tensor:
    """(B, H, Q, K): "linear" log(eps + a / (sum a + eps)); "softmax" a log-softmax of the probabilities themselves."""
    log_alpha, log_share = pair
    if log_share is None:
        raise ValueError("the released losses need the share of attention: ask for it with attention_share=True")
    alpha = (log_alpha + log_share[..., None]).exp()
    if normalization == "linear":
        return (_EPSILON + alpha / (alpha.sum(-1, keepdim=True) + _EPSILON)).log()
    return alpha.masked_fill((targets.columns < 0)[:, None, None], LOWEST_SCORE).log_softmax(-1)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Losses on the attention of chosen rows, which comes from the attention function or from full maps.

Each loss takes the log attention of one or several layers, (L, B, H, Q, K), and their visible gold columns,
(1 or L, B, Q, K) bool, and returns one number per row, (L, B, Q), averaged over heads; it is 0 for rows that see no
gold column.

Shape letters: L layers, B batch, H heads, N sequence, Q queried rows, K queried columns.
"""

import torch
from torch import Tensor

from .score_masks import LOWEST_SCORE


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

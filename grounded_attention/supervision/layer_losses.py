# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The mean of the attention losses over all heads of all layers.

Shape letters: L layers, B batch, H heads, Q queried rows, K queried columns.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .attention_function import AttentionPair
from .losses import VisibleTargets, visible_targets

# Limit of log-probabilities that are copied to compute the losses of several layers at once: 4 MiB.
JOINED_NUMBERS = 2**20


def sum_layers(
    pairs: Sequence[AttentionPair], gold: Tensor, rows_loss: Callable[[AttentionPair, VisibleTargets], Tensor]
) -> tuple[Tensor, Tensor]:
    """Sums the losses of all rows, each averaged over all heads of the layers that see a gold column of the row.

    Args:
        pairs (`Sequence[AttentionPair]`): the reports of the layers, which may have different numbers of heads.
        gold (`Tensor`): (B, Q, K) bool, the gold columns.
        rows_loss (`Callable`): the loss of each row, averaged over heads, (B, Q). Small layers are joined along the
            batch, so it also receives a multiple of B examples.

    Returns:
        `tuple[Tensor, Tensor]`: the sum () and the number () of rows that see a gold column in any layer.
    """
    heads: list[int] = []
    losses: list[Tensor] = []
    rows: list[Tensor] = []
    for group in _group_layers(pairs):
        pair, shape = _join(group), (len(group), len(gold))
        visible = visible_targets(pair, gold.repeat(len(group), 1, 1))
        heads += [pair[0].shape[1]] * len(group)
        losses.append(rows_loss(pair, visible).unflatten(0, shape))
        rows.append(visible.rows.unflatten(0, shape))
    by_row, seen = torch.cat(losses), torch.cat(rows)  # (L, B, Q)
    weights = by_row.new_tensor(heads)
    # 1 if all layers see a gold column of the row.
    scale = weights.sum() / (weights[:, None, None] * seen).sum(0).clamp(min=1)
    total = ((by_row * scale).sum((1, 2)) * (weights / weights.sum())).sum()
    return total, seen.any(0).sum()


def _group_layers(pairs: Sequence[AttentionPair]) -> list[list[AttentionPair]]:
    """Groups layers whose losses are computed at once: a few large operations take less time than many small ones."""
    groups: list[list[AttentionPair]] = []
    for pair in pairs:
        last = groups[-1] if groups else []
        if last and last[0][0].shape == pair[0].shape and (len(last) + 1) * pair[0].numel() <= JOINED_NUMBERS:
            last.append(pair)
        else:
            groups.append([pair])
    return groups


def _join(pairs: Sequence[AttentionPair]) -> AttentionPair:
    """Joins pairs of one shape along the batch, (L * B, H, Q, K) and (L * B, H, Q); one pair stays as it is."""
    if len(pairs) == 1:
        return pairs[0]
    shares = [share for _, share in pairs if share is not None]
    return torch.cat([alpha for alpha, _ in pairs]), torch.cat(shares) if len(shares) == len(pairs) else None

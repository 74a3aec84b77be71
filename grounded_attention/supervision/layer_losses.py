# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The mean of the attention losses over all heads of all layers.

Shape letters: L layers, B batch, H heads, Q queried rows, K queried columns.
"""

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

from .row_states import AttentionPair, RowStates, layers_at_once, stack_states
from .score_masks import is_hidden

LayerReport = AttentionPair | RowStates


def sum_layers(
    reports: Sequence[LayerReport], gold: Tensor, rows_loss: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Sums the losses of all rows, each averaged over all heads of the layers that see a gold column of the row."""
    losses: list[Tensor] = []
    heads: list[Tensor] = []  # that see a gold column of the row
    for group in _group_layers(reports):
        log_alpha, columns = _stack(group)
        visible = gold.to(columns.device) & columns
        num_heads = log_alpha.shape[2]
        losses.append(num_heads * rows_loss(log_alpha, visible).sum(0).to(gold.device))
        num_layers = visible.any(-1).sum(0).to(gold.device)
        heads.append(num_heads * len(group) // len(columns) * num_layers)
    num_heads_of_rows = reduce(torch.add, heads)  # (B, Q)
    means = reduce(torch.add, losses) / num_heads_of_rows.clamp(min=1)
    return means.sum(), (num_heads_of_rows > 0).sum()


def read_pairs(reports: Sequence[LayerReport]) -> list[AttentionPair]:
    """The attention of the layers, (B, H, Q, K) and (B, H, Q) or None each; that of small ones is computed at once."""
    pairs: list[AttentionPair] = []
    for group in _group_layers(reports):
        states = [report for report in group if isinstance(report, RowStates)]
        if states:
            alpha, share = stack_states(states).pair()
            pairs += zip(alpha, [None] * len(alpha) if share is None else share, strict=True)
        pairs += [report for report in group if not isinstance(report, RowStates)]
    return pairs


def _group_layers(reports: Sequence[LayerReport]) -> list[list[LayerReport]]:
    """Groups layers whose losses are computed at once: a few large operations take less time than many small ones."""
    groups: list[list[LayerReport]] = []
    room = 0
    for report in reports:
        if room > 0 and _fit(groups[-1][0], report):
            groups[-1].append(report)
            room -= 1
        else:
            groups.append([report])
            room = layers_at_once(*_size(report)) - 1
    return groups


def _fit(one: LayerReport, other: LayerReport) -> bool:
    if isinstance(one, RowStates) or isinstance(other, RowStates):
        return isinstance(one, RowStates) and isinstance(other, RowStates) and one.fits(other)
    return (one[0].shape, one[0].device) == (other[0].shape, other[0].device)


def _size(report: LayerReport) -> tuple[int, torch.device]:
    if isinstance(report, RowStates):
        return (report.size(), report.keys.device)
    return (report[0].numel(), report[0].device)


def _stack(reports: Sequence[LayerReport]) -> tuple[Tensor, Tensor]:
    """The log attention of a group, (L, B, H, Q, K), and its visible columns, (1 or L, B, 1 or Q, K)."""
    states = [report for report in reports if isinstance(report, RowStates)]
    if states:
        return stack_states(states).log_alpha(), states[0].visible_columns()[None]
    log_alpha = torch.stack([report[0] for report in reports if not isinstance(report, RowStates)])
    # Columns that some heads do not see are hidden too, as padded ones are.
    return log_alpha, ~is_hidden(log_alpha.detach().amin(2))

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Chosen responses look at the evidence more than rejected ones do.

Shape letters: B batch, H heads, Q rows, K columns.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from annotated_types import Gt, Len
from torch import Tensor
from torch.nn import functional as F

from grounded_attention.modeling.task_losses import Counts, Loss
from grounded_attention.utils.named_types import Batch, Fields
from grounded_attention.utils.schema import Index, Pair

from .score_masks import LOWEST_SCORE, is_hidden
from .soft_attention import ROWS, SoftAttention


class AttentionMargin(SoftAttention):
    """-log sigmoid(beta * (evidence of the chosen response - evidence of the rejected one)).

    The evidence of a response is the logarithm of the attention on its boxes among the image tokens, in the mean of
    the heads of a layer, averaged over its tokens and the layers. The first half of a batch are the chosen responses
    and the second half the rejected ones, in the same order, as in TRL. A pair without boxes is not counted.

    Args:
        layers, heads: see [`AttentionMethod`].
        beta (`float`, *optional*, defaults to `1.0`): factor of the margin.

    References:
        The formula is ours. ADAPT (2026, arXiv 2606.31054) guides DPO by attention too; its training code is not
        published and its formula was not seen.
    """

    name = "margin"
    effect = "its chosen responses were taught to look at the evidence more than its rejected ones"
    defaults = {"rows": "words", "target": "indicator", "reduction": "mean"}

    def __init__(
        self,
        layers: Annotated[Sequence[Index | str], Len(1)] | None = None,
        heads: Annotated[Sequence[Index] | Sequence[Pair], Len(1)] | None = None,
        beta: Annotated[float, Gt(0)] = 1.0,
    ):
        super().__init__(layers, heads)
        self.beta = beta

    def get_config_dict(self) -> Fields:
        config = super().get_config_dict()
        return {key: config[key] for key in ("name", "layers", "heads")} | {"beta": self.beta}

    def counts(self, batch: Batch) -> Counts:
        known = (self.targets(batch)[ROWS].rows >= 0).any(1)
        return {ROWS: _both(known).sum()}

    def distribution_loss(self, pairs: Sequence[Any], queries: Any, hidden_states: Any, batch: Batch) -> Loss:
        gold = self.targets(batch)[ROWS].gold > 0
        evidence = gold.new_zeros(len(gold), dtype=torch.float32)
        counts = gold.new_zeros(len(gold), dtype=torch.float32)
        for alpha, _ in pairs:
            logs = alpha.logsumexp(1) - torch.tensor(float(alpha.shape[1])).log()
            visible = gold & ~is_hidden(logs)
            rows = visible.any(-1)
            of_rows = logs.masked_fill(~visible, LOWEST_SCORE).logsumexp(-1)
            evidence = evidence + torch.where(rows, of_rows, 0.0).sum(1)
            counts = counts + rows.sum(1)
        chosen, rejected = (evidence / counts.clamp(min=1)).chunk(2)
        known = _both(counts > 0)
        return torch.where(known, -F.logsigmoid(self.beta * (chosen - rejected)), 0.0).sum(), known.sum()


def _both(known: Tensor) -> Tensor:
    """(B,) bool of responses -> (B / 2,) bool, whether the chosen and the rejected one of a pair are True."""
    if len(known) % 2:
        raise ValueError(f"{len(known)} responses are no pairs: give the chosen ones, then the rejected ones")
    chosen, rejected = known.chunk(2)
    return chosen & rejected

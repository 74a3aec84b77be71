# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""RAL: the attention of rewarded responses stays near the one that they were generated with.

Shape letters: L supervised layers, B batch, Q rows, K columns.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from annotated_types import Len
from torch import Tensor

from grounded_attention.modeling.task_losses import Loss
from grounded_attention.utils.named_types import Batch, Fields
from grounded_attention.utils.schema import Index, Pair

from .alignment import require, sequence_pairs
from .divergences import DIVERGENCES
from .score_masks import LOWEST_SCORE
from .soft_attention import ROWS, SoftAttention
from .supervise import call_layers, find_calls

EARLIER = "earlier_attention"


class EarlierAttention(SoftAttention):
    """Divergence of each row from the same row of an earlier model, times the advantage of its response.

    A row is the mean over the heads of a layer, without the token itself, normalised over the columns. The batch has
    `advantages` (B,), and `earlier_attention` (B, L, Q, K), which [`read`] makes in a pass of the earlier model.

    Args:
        layers, heads: see [`AttentionMethod`]; by default all heads of the last layer.
        columns (`str`, *optional*, defaults to `"sequence"`): `"sequence"`, all earlier tokens, or `"image"`.
        divergence (`str`, *optional*, defaults to `"jsd"`): see [`SoftAttention`].
        sign (`int`, *optional*, defaults to `1`): with 1 the attention of responses with a positive advantage is
            pulled to the earlier one, and that of others pushed away; with -1 the reverse.

    References:
        Reinforced Attention Learning (2026), arXiv 2602.04884, read in summaries: its weight was not seen, and a
        reader notes that its text does not settle the sign.
    """

    name = "earlier"
    effect = "the attention of its responses was kept near an earlier one by their advantage"
    defaults = {"rows": "words", "target": "indicator", "reduction": "mean"}

    def __init__(
        self,
        layers: Annotated[Sequence[Index | str], Len(1)] | None = None,
        heads: Annotated[Sequence[Index] | Sequence[Pair], Len(1)] | None = None,
        columns: Literal["sequence", "image"] = "sequence",
        divergence: Literal["kl", "jsd"] = "jsd",
        sign: Literal[1, -1] = 1,
    ):
        super().__init__(layers, heads, divergence=divergence)
        self.response_columns = columns
        self.sign = sign
        self.empty = "no response has a token, so no attention is compared with an earlier one"

    def get_config_dict(self) -> Fields:
        config = super().get_config_dict()
        chosen = {"columns": self.response_columns, "sign": self.sign}
        return {key: config[key] for key in ("name", "layers", "heads", "divergence")} | chosen

    def prepare(self, model: Any) -> None:
        if self.layers is None:
            self.layers = (call_layers(find_calls(model))[-1],)
        super().prepare(model)

    def forward_kwargs(self, batch: Batch) -> Fields:
        return {**super().forward_kwargs(batch), "attention_share": True}

    def read(self, outputs: Any, batch: Batch) -> Tensor:
        """The attention of the rows to be kept for a later step, (B, L, Q, K), without a graph."""
        prepared = {**batch, **self._prepared(batch)}
        return torch.stack([each.detach().exp() for each in self._logs(self._pairs(outputs)[0], prepared)], 1)

    def distribution_loss(self, pairs: Sequence[Any], queries: Any, hidden_states: Any, batch: Batch) -> Loss:
        require(batch, ("advantages", EARLIER), f"{self.name!r} needs it, see EarlierAttention.read")
        divergence = DIVERGENCES[self.options["divergence"]]
        logs = self._logs(pairs, batch)
        losses = torch.stack([divergence(old, new) for old, new in zip(batch[EARLIER].unbind(1), logs, strict=True)])
        known = self.targets(batch)[ROWS].rows >= 0
        weighted = self.sign * batch["advantages"][:, None] * losses.mean(0)
        return torch.where(known, weighted, 0.0).sum(), known.sum()

    def _logs(self, pairs: Sequence[Any], batch: Batch) -> list[Tensor]:
        """(B, Q, K) of each layer: the logarithm of the mean of its heads over the columns, without the row itself."""
        rows, columns = sequence_pairs(self.targets(batch), batch)[ROWS]
        itself = rows[..., None] == columns[:, None]
        layers = []
        for alpha, share in pairs:
            logs = (alpha + share[..., None]).logsumexp(1).clamp(min=LOWEST_SCORE)
            logs = logs.masked_fill(itself, LOWEST_SCORE)
            layers.append(logs.log_softmax(-1).masked_fill(logs <= LOWEST_SCORE / 2, LOWEST_SCORE))
        return layers

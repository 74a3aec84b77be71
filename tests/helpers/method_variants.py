# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Supervision methods as the public VGP code computes them.

One region a token, 1e-6 in sums and logarithms, and from regions to text a binary cross-entropy on log-probabilities.
"""

import torch
from torch.nn import functional as F

from grounded_attention.supervision import align, get_method
from grounded_attention.supervision.indirect import _grounded_pairs
from grounded_attention.supervision.score_masks import LOWEST_SCORE, is_hidden

EPSILON = 1e-6


def first_region(aligned):
    """(B, T, R) bool: of each token one region, as in the tags of the public code."""
    return aligned & (aligned.cumsum(-1) == 1)


class ReleasedAttention:
    """A mixin for attention methods; `normalization` is an option of the public code."""

    normalization = "linear"

    def prepare_batch(self, batch, *generators):
        first = first_region(align(batch))
        every = torch.eye(first.shape[1], dtype=torch.bool, device=first.device).expand(len(first), -1, -1)
        return super().prepare_batch({**batch, "phrase_mask": every, "phrase_regions": first}, *generators)

    def forward_kwargs(self, batch):
        arguments = super().forward_kwargs(batch)
        if self.name == "direct":
            return arguments | {"attention_share": True, "attention_states": False}
        return arguments

    def sum_losses(self, pairs, targets):
        sums = {}
        for name, reports in pairs.items():
            gold = targets[name].gold
            total = 0
            seen = 0
            for log_alpha, log_share in reports:
                columns = ~is_hidden(log_alpha.detach().amin(1))  # (B, Q, K)
                visible = gold & columns
                logs = self.logs((log_alpha + log_share[..., None]).exp(), columns[:, None])
                rows = text_rows if name == "text_to_region" else region_rows
                total = total + (rows(logs, visible[:, None], columns[:, None]) * visible.any(-1)[:, None]).sum(1)
                seen = seen + log_alpha.shape[1] * visible.any(-1)
            sums[name] = self.weights[name] * (total / seen.clamp(min=1)).sum(), (seen > 0).sum()
        return sums

    def logs(self, alpha, columns):
        if self.normalization == "linear":
            return (EPSILON + alpha / (alpha.sum(-1, keepdim=True) + EPSILON)).log()
        return alpha.masked_fill(~columns, LOWEST_SCORE).log_softmax(-1)


def text_rows(logs, gold, columns):
    """The negative log-likelihood of the region of a token, (B, H, Q)."""
    return -(logs * gold).sum(-1)


def region_rows(logs, gold, columns):
    """The sigmoid of log p is p / (1 + p), so even a perfect row has a loss above 0; (B, H, Q)."""
    losses = F.binary_cross_entropy_with_logits(logs, gold.to(logs.dtype).expand_as(logs), reduction="none")
    return (losses * columns).sum(-1) / columns.sum(-1).clamp(min=1)


class ReleasedIndirect:
    """The mean over all pairs, without the public error of pooling the words after a phrase."""

    def counts(self, batch):
        return {"grounding": _grounded_pairs(batch)[0].sum()}

    def losses(self, outputs, batch):
        pairs, gold = _grounded_pairs(batch)
        logits = outputs.grounding_logits.float().masked_fill(~pairs, 0.0)
        losses = F.binary_cross_entropy_with_logits(logits, gold.to(logits.dtype), reduction="none") * pairs
        return {"grounding": (losses.sum(), pairs.sum())}


def make_method(name, variant="paper", normalization="linear", **options):
    """`get_method`, or the method of the public code with `variant="released"`."""
    kind = type(get_method(name))
    if variant == "released":
        mixin = ReleasedIndirect if name == "indirect" else ReleasedAttention
        kind = type(f"Released{kind.__name__}", (mixin, kind), {"normalization": normalization})
    return kind(**options)

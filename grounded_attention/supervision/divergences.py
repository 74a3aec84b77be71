# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Divergences of attention from a target over the same columns.

Each takes the target (..., K), 1 in sum, and the log-probabilities of attention (..., K), -1e9 where a column is
hidden, and returns (...).
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_TINY = torch.finfo(torch.float32).tiny


def cross_entropy(target: Tensor, logs: Tensor) -> Tensor:
    return -(target * logs).sum(-1)


def kl(target: Tensor, logs: Tensor) -> Tensor:
    """KL(target || attention)."""
    return (torch.xlogy(target, target) - target * logs).sum(-1)


def reverse_kl(target: Tensor, logs: Tensor) -> Tensor:
    """KL(attention || target); finite if the target has a background."""
    return (logs.exp() * (logs.clamp(min=-87.0) - target.clamp(min=_TINY).log())).sum(-1)


def jsd(target: Tensor, logs: Tensor) -> Tensor:
    """The Jensen-Shannon divergence, at most log 2."""
    attention = logs.exp()
    mixed = ((target + attention) / 2).clamp(min=_TINY).log()
    ours = attention * (logs.clamp(min=-87.0) - mixed)
    return (torch.xlogy(target, target) - target * mixed + ours).sum(-1) / 2


DIVERGENCES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": cross_entropy,
    "kl": kl,
    "reverse_kl": reverse_kl,
    "jsd": jsd,
}

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention rollout: how much of each input position has reached each position after every layer.

Abnar and Zuidema (2020). Shape letters: B batch, N sequence.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def attention_rollout(means: Sequence[Tensor]) -> list[Tensor]:
    """Rollout R_l = W_l R_{l-1} after every layer, where W_l is a layer's head-averaged attention plus the identity
    (the residual connection), its rows normalised, and R_0 = W_0.

    Args:
        means: one (B, N, N) head-averaged attention map a layer, from the first layer on; rows sum to 1, or to what a
            dropout left.

    Returns:
        one (B, N, N) a layer; rows sum to 1, and padded columns stay 0 in the rows of attended positions.
    """
    rollouts: list[Tensor] = []
    for mean in means:
        mixed = mean + torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
        mixed = mixed / mixed.sum(-1, keepdim=True)
        rollouts.append(mixed @ rollouts[-1] if rollouts else mixed)
    return rollouts

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Token activation maps (TAM, Li et al., arXiv 2506.23270): what the image tokens themselves would say for a word.

The hidden states of the image tokens are read by the unembedding, as those of the text are. The logit of a word's
token, less what earlier tokens explain, is its map, which a filter of ranks makes smooth.

Shape letters: T tokens of the text in their order, R image tokens, J texts beside a map, Y and X rows and columns.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from grounded_attention.heads.maps import TokenGrid

FLOOR = 1e-8  # is added to a sum of weights
LEAST = 1e-12
FLAT = 1e-6  # a spread that gives a window's middle value all the weight


def find_interference(activation: Tensor, scores: Tensor, ids: Tensor) -> Tensor:
    """What earlier tokens of the text explain of each map.

    Args:
        activation (`Tensor`): (T, R), the logit of token t at each image token, not below 0.
        scores (`Tensor`): (T, T), `[i, j]` the logit of token i where token j is read, not below 0.
        ids (`Tensor`): (T,) int64, the tokens; a token does not explain itself.

    Returns:
        `Tensor`: (T, R), the mean of the earlier tokens' activation, weighted by their scores; 0 where no earlier
            token differs.
    """
    differs = (ids[:, None] != ids).tril(-1)
    weights = scores * differs
    weights = weights / (weights.sum(-1, keepdim=True) + FLOOR)
    return weights @ activation


def remove_interference(activation: Tensor, interference: Tensor) -> Tensor:
    """Activation (T, R) less the multiple of the interference (T, R) that is nearest to it, and not below 0."""
    energy = interference.square().sum(-1, keepdim=True)
    shared = (activation * interference).sum(-1, keepdim=True)
    scale = shared / energy.clamp(min=LEAST)
    return (activation - scale * interference).clamp(min=0)


def normalise(cleaned: Tensor, scores: Tensor, beside: Tensor) -> Tensor:
    """Divides each map by the range of its values and of the scores beside it, from 0 to 1.

    Args:
        cleaned (`Tensor`): (T, R) maps; all images of a prompt share one range.
        scores (`Tensor`): (T, J) scores of the same tokens in the text.
        beside (`Tensor`): (T, J) bool, which of them are in the range.

    Returns:
        `Tensor`: (T, R) in [0, 1]; 0 for a map whose range is empty.
    """
    low = torch.minimum(cleaned.amin(-1), scores.masked_fill(~beside, torch.inf).amin(-1))[:, None]
    high = torch.maximum(cleaned.amax(-1), scores.masked_fill(~beside, -torch.inf).amax(-1))[:, None]
    return (cleaned - low) / (high - low).clamp(min=LEAST)


def filter_ranks(maps: Tensor, side: int = 3) -> Tensor:
    """Smooths maps by the ranks of the values around each cell, which leaves out what stands alone.

    The values of a window are sorted and weighted by a Gaussian around their middle, whose width is their standard
    deviation divided by their mean; a flat window gives its median.

    Args:
        maps (`Tensor`): (..., Y, X), not negative; beyond the edge they are mirrored, the edge itself once.
        side (`int`, *optional*, defaults to 3): rows and columns of a window, odd.

    Returns:
        `Tensor`: (..., Y, X), 0 where the mean of a window is 0.
    """
    for axis in (-2, -1):
        maps = maps.index_select(axis, _mirrored(maps.shape[axis], side // 2, maps.device))
    windows = maps.unfold(-2, side, 1).unfold(-2, side, 1).flatten(-2).sort(-1).values
    mean = windows.mean(-1, keepdim=True)
    spread = windows.std(-1, correction=0, keepdim=True) / mean.clamp(min=LEAST)
    ranks = torch.arange(side**2, device=maps.device) - side**2 // 2
    weights = torch.exp(-0.5 * (ranks / spread.clamp(min=FLAT)) ** 2)
    weights = weights / weights.sum(-1, keepdim=True)
    return (weights * windows * (mean > 0)).sum(-1)


def _mirrored(count: int, reach: int, device: torch.device) -> Tensor:
    """The places of a line of `count` cells with `reach` more at both ends."""
    last = count - 1
    places = torch.arange(-reach, count + reach, device=device) % max(2 * last, 1)
    return last - (last - places).abs()


def filter_tokens(values: Tensor, grid: TokenGrid) -> Tensor:
    """[`filter_ranks`] of values of image tokens (T, R) on the grid of an image; 0 for tokens that are not in it.

    A cell has the mean of the tokens that show it, and a token of several cells the mean of what they become.
    """
    shown = grid.maps(torch.ones_like(values[:1])).clamp(min=LEAST)
    cells = filter_ranks(grid.maps(values) / shown).flatten(-2)
    parts = cells[:, grid.cells] * grid.weights
    return torch.zeros_like(values).index_add_(-1, grid.tokens, parts)


def token_maps(activation: Tensor, scores: Tensor, ids: Tensor, grids: Sequence[TokenGrid]) -> Tensor:
    """The maps of the tokens of a text on its images (arXiv 2506.23270).

    The authors divide the map of a word of the prompt by a range in which later words are too; here only earlier
    words are. Numbers are not cut to 8 bits, and a scale is not searched but computed.

    Args:
        activation (`Tensor`): (T, R) float32, the logit of token t at each image token, not below 0.
        scores (`Tensor`): (T, T) float32, `[i, j]` the logit of token i where token j is read, not below 0: of a
            token of the prompt its own position, of one of the answer the position before.
        ids (`Tensor`): (T,) int64, the tokens.
        grids (`Sequence[TokenGrid]`): of each image, or step of a video, where its tokens are.

    Returns:
        `Tensor`: (T, R) float32 in [0, 1].
    """
    cleaned = remove_interference(activation, find_interference(activation, scores, ids))
    earlier = torch.ones_like(scores, dtype=torch.bool).tril(-1)
    normalised = normalise(cleaned, scores, earlier)
    filtered = torch.zeros_like(normalised)
    for grid in grids:
        filtered += filter_tokens(normalised, grid)
    return filtered

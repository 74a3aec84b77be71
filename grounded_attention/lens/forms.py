# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What can be done with attention on image tokens before it is shown: small functions that can be chained.

Shape letters: L layers, H heads, W words, R image tokens of one image, Y and X rows and columns of a grid, N sequence.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from grounded_attention.heads.choosing import elbow, top_heads
from grounded_attention.heads.maps import spatial_entropy

# A token that draws this many times the mean attention, from this share of all words, is a sink.
SINK_FACTOR = 4.0
SINK_WORDS = 0.75
LEAST_WORDS = 4  # of which a token can be called a sink
FLOOR = 1e-8
# Localization Heads: what is less above the mean is noise; a head may light this much of the last row.
NOISE = 1e-3
BOTTOM = 0.05
# ViCrop: sides of windows, as parts of the smallest one, and its part of the shorter side of the image.
RATIOS = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0)
WINDOW = 1 / 3


def relative(attention: Tensor, neutral: Tensor) -> Tensor:
    """Attention divided by that of a neutral prompt (Zhang et al., "MLLMs Know Where to Look", arXiv 2502.17422).

    Args:
        attention (`Tensor`): (..., R) attention of words or of the last position of a prompt.
        neutral (`Tensor`): (..., R) attention of the last position of a neutral prompt about the same image, in the
            same heads. Values below 1e-8 count as 1e-8.

    Returns:
        `Tensor`: (..., R) ratios, not negative; 1 where both prompts look alike.
    """
    return attention / neutral.clamp(min=FLOOR)


def find_sinks(attention: Tensor) -> Tensor:
    """Finds the image tokens that draw attention from nearly every word, whatever it means.

    Args:
        attention (`Tensor`): (..., W, R) attention of all words on the tokens of an image.

    Returns:
        `Tensor`: (..., R) bool. Words before the image, which see nothing of it, do not count. None is a sink if there
            are fewer than four others, which say too little.
    """
    seeing = attention.any(-1).sum(-1, keepdim=True)
    above = attention > SINK_FACTOR * attention.mean(-1, keepdim=True)
    return (above.sum(-2) >= SINK_WORDS * seeing) & (seeing >= LEAST_WORDS)


def without_sinks(attention: Tensor, sinks: Tensor) -> Tensor:
    """Attention (..., W, R) with 0 at the sinks (..., R), see [`find_sinks`]."""
    return attention.masked_fill(sinks.unsqueeze(-2), 0.0)


def rollout_rows(means: Sequence[Tensor], rows: Tensor) -> Tensor:
    """The attention rollout of some rows (Abnar and Zuidema, 2020): half attention, half identity, in every layer.

    Args:
        means (`Sequence[Tensor]`): of each layer, (N, N), attention averaged over heads.
        rows (`Tensor`): (Q,) int64, the positions that ask.

    Returns:
        `Tensor`: (Q, N), how much of each position is in a row after the last layer; rows sum to 1.
    """
    mixed = torch.zeros(len(rows), means[0].shape[0], device=means[0].device)
    mixed[torch.arange(len(rows)), rows] = 1.0
    for mean in reversed(means):
        mixed = 0.5 * (mixed + mixed @ mean)
    return mixed


def localization_heads(
    maps: Tensor, skip_layers: int = 2, most: int = 5, least: int = 1, chord: bool = True
) -> list[tuple[int, int]]:
    """Chooses heads for one question without any label: much attention on the image, in few places.

    The rule of Localization Heads (Kang et al., CVPR 2025, arXiv 2503.06287) as vl-saliency applies it to one prompt:
    the heads whose attention on the image is above the elbow of all heads, without the first layers and without heads
    that light the last row of the image, in the order of their spatial entropy.

    Args:
        maps (`Tensor`): (L, H, Y, X) attention of the end of the prompt on the image, not divided by its sum.
        skip_layers (`int`, *optional*, defaults to 2): the first layers, which are left out.
        most (`int`, *optional*, defaults to 5): the number of heads that are chosen at most, 0 for all.
        least (`int`, *optional*, defaults to 1): if fewer are chosen, heads of any layer with the most attention on
            the image are added, though they are scattered.
        chord (`bool`, *optional*, defaults to `True`): whether the elbow decides; otherwise every head may be chosen.

    Returns:
        `list[tuple[int, int]]`: (layer, head), counted from 0 in `maps`, the best first.
    """
    sums = maps.sum((2, 3))
    cut = elbow(sums.numpy()) if chord else -torch.inf
    allowed = torch.ones_like(sums, dtype=torch.bool)
    allowed[:skip_layers] = False
    lit = (maps[:, :, -1] > BOTTOM).any(-1)
    # Many heads have one place, an entropy of 0 up to rounding; the order of layers decides among them.
    entropy = spatial_entropy(maps.flatten(0, 1), means=2.0, noise=NOISE).view_as(sums).round(decimals=5)
    chosen = top_heads(-entropy, most or None, allowed & ~lit & (sums >= cut))
    if len(chosen) < least:
        more = [head for head in top_heads(sums, allowed=~lit) if head not in chosen]
        chosen = sorted(chosen + more[: least - len(chosen)], key=lambda head: float(entropy[head]))
    return chosen


def crop_box(attention: np.ndarray, size: tuple[int, int], side: float | None = None) -> tuple[int, int, int, int]:
    """Finds the part of an image that holds the attention, by the rule of ViCrop (arXiv 2502.17422).

    Windows of 1, 1.2 ... 2 times `side` move over the map. Of each size the place with the largest sum competes by how
    much it stands out from its neighbours.

    Args:
        attention (`np.ndarray`): (Y, X) attention on a grid over the whole image, not negative.
        size (`tuple[int, int]`): width and height of the image in pixels.
        side (`float`, *optional*): side of the smallest window in pixels, by default a third of the image's shorter
            side (of ViCrop the size that the vision tower sees, which was worse on scenes: docs/results.md).

    Returns:
        `tuple[int, int, int, int]`: x1, y1, x2, y2 in pixels; the whole image if the smallest window covers it.
    """
    values = np.asarray(attention, dtype=np.float64)
    width, height = size
    if side is None:
        side = WINDOW * min(size)
    rows, columns = values.shape
    cell = np.array([width / columns, height / rows])
    sums = np.pad(values.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    best: tuple[float, float, np.ndarray] | None = None
    for ratio in RATIOS:
        # A cell may be larger than the window: the window is then one cell.
        across, down = np.clip(np.floor(side * ratio / cell), 1, (columns, rows)).astype(int)
        if across == columns and down == rows:
            if ratio == RATIOS[0]:
                return 0, 0, width, height
            continue
        right = sums[down:, across:] - sums[:-down, across:]
        total = right - sums[down:, :-across] + sums[:-down, :-across]
        y, x = np.unravel_index(total.argmax(), total.shape)
        beside = []
        for b, a in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
            if 0 <= b < total.shape[0] and 0 <= a < total.shape[1]:
                beside.append(total[b, a])
        score = (total[y, x] - np.mean(beside)) / (across * down)
        if best is None or score > best[0]:
            middle = np.array([x, y]) + np.array([across, down]) / 2
            best = score, ratio, middle * cell
    assert best is not None, "the smallest window covers the map or competes"
    _, ratio, centre = best
    half = int(side * ratio // 2)
    low = np.clip(centre.astype(int), half, np.maximum(half, np.array(size) - half)) - half
    high = np.minimum(low + 2 * half, size)
    x1, y1, x2, y2 = (int(edge) for edge in (*np.maximum(low, 0), *high))
    return x1, y1, x2, y2

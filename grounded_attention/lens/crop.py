# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Where to crop an image for a second look: the rule of ViCrop (arXiv 2502.17422)."""

import numpy as np

RATIOS = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0)
SIDE = 336  # pixels


def crop_box(attention: np.ndarray, size: tuple[int, int], side: float = SIDE) -> tuple[int, int, int, int]:
    """Finds the part of an image that holds the attention.

    Windows of 1, 1.2 ... 2 times `side` move over the map. Of each size the place with the largest sum competes by how
    much it stands out from its neighbours.

    Args:
        attention (`np.ndarray`): (Y, X) attention on a grid over the whole image, not negative.
        size (`tuple[int, int]`): width and height of the image in pixels.
        side (`float`, *optional*, defaults to 336): side of the smallest window in pixels, the size that the vision
            tower sees.

    Returns:
        `tuple[int, int, int, int]`: x1, y1, x2, y2 in pixels; the whole image if the smallest window covers it.
    """
    values = np.asarray(attention, dtype=np.float64)
    width, height = size
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
        total = sums[down:, across:] - sums[:-down, across:] - sums[down:, :-across] + sums[:-down, :-across]
        y, x = np.unravel_index(total.argmax(), total.shape)
        beside = [
            total[b, a]
            for b, a in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1))
            if 0 <= b < total.shape[0] and 0 <= a < total.shape[1]
        ]
        score = (total[y, x] - np.mean(beside)) / (across * down)
        if best is None or score > best[0]:
            best = score, ratio, (np.array([x, y]) + np.array([across, down]) / 2) * cell
    assert best is not None, "the smallest window covers the map or competes"
    _, ratio, centre = best
    half = int(side * ratio // 2)
    low = np.clip(centre.astype(int), half, np.maximum(half, np.array(size) - half)) - half
    high = np.minimum(low + 2 * half, size)
    x1, y1, x2, y2 = (int(edge) for edge in (*np.maximum(low, 0), *high))
    return x1, y1, x2, y2

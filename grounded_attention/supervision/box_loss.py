# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The box of what a word names, which its state must tell beside supervised attention.

Boxes are those of DETR (Carion et al., 2020): (center_x, center_y, width, height) divided by the image size.

Shape letters: B batch, T text, R regions.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def word_boxes(aligned: Tensor, region_boxes: Tensor) -> tuple[Tensor, Tensor]:
    """The box that encloses the regions of each word.

    Args:
        aligned: (B, T, R) bool, see `align`.
        region_boxes: (B, R, 4), corners (x1, y1, x2, y2) in [0, 1].

    Returns:
        (B, T, 4) float32, (center_x, center_y, width, height), 0 for words without a region; (B, T) bool, the
        words with one.
    """
    # One region more, of no word, so that there is one.
    aligned, boxes = F.pad(aligned, (0, 1)), F.pad(region_boxes.float(), (0, 0, 0, 1))
    without = ~aligned[..., None]
    low = boxes[:, None, :, :2].masked_fill(without, torch.inf).amin(2)
    high = boxes[:, None, :, 2:].masked_fill(without, -torch.inf).amax(2)
    named = aligned.any(-1)
    return torch.cat([(low + high) / 2, high - low], -1).masked_fill(~named[..., None], 0.0), named


def box_loss(pred_boxes: Tensor, boxes: Tensor, named: Tensor) -> Tensor:
    """Squared error of the four numbers, summed over the named words: () float32, 0 with a graph where there are none.

    Args:
        pred_boxes, boxes: (B, T, 4), see `word_boxes`.
        named: (B, T) bool.
    """
    return ((pred_boxes.float() - boxes) * named[..., None]).square().sum()

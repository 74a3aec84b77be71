# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Selection of a detector's boxes as regions: clipped to the image, without duplicates, the best by score. n boxes."""

import torch
from torch import Tensor

from .region_boxes import box_iou

try:
    from torchvision.ops import nms as torchvision_nms
except (ImportError, RuntimeError, OSError):  # a torchvision for another torch fails in other ways than a missing one
    torchvision_nms = None

# A region needs at least one pixel for a feature.
MIN_SIDE = 1.0


def suppress(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Applies greedy, class-agnostic non-maximum suppression: drops boxes that overlap a better one too much."""
    if torchvision_nms is not None:
        return torchvision_nms(boxes, scores, iou_threshold)
    return greedy_suppression(boxes, scores, iou_threshold)


def greedy_suppression(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Implements `suppress` without torchvision, one row of the overlap matrix at a time."""
    order = scores.argsort(descending=True, stable=True)
    ranked = boxes[order]
    kept = torch.ones(len(order), dtype=torch.bool, device=boxes.device)
    for rank in range(len(order)):
        if kept[rank]:
            kept[rank + 1 :] &= box_iou(ranked[rank : rank + 1], ranked[rank + 1 :])[0] <= iou_threshold
    return order[kept]


def clip_boxes(boxes: Tensor, width: int, height: int) -> tuple[Tensor, Tensor]:
    """Clips pixel boxes to the image."""
    limit = torch.tensor([width, height, width, height], dtype=boxes.dtype, device=boxes.device)
    finite = boxes.isfinite().all(-1)
    clipped = torch.minimum(boxes.nan_to_num().clamp(min=0), limit)
    # An image one pixel wide still has regions.
    smallest = limit[:2].clamp(max=MIN_SIDE)
    return clipped, finite & ((clipped[:, 2:] - clipped[:, :2]) >= smallest).all(-1)


def widen_boxes(boxes: Tensor, width: int, height: int) -> Tensor:
    """Clips pixel boxes (n, 4) to the image; a side below one pixel becomes one pixel inside the image."""
    limit = torch.tensor([width, height], dtype=boxes.dtype, device=boxes.device)
    smallest = limit.clamp(max=MIN_SIDE)
    low = torch.minimum(boxes[:, :2].clamp(min=0), limit - smallest)
    return torch.cat([low, torch.maximum(torch.minimum(boxes[:, 2:], limit), low + smallest)], dim=1)


def select_regions(
    boxes: Tensor,
    scores: Tensor,
    min_regions: int = 10,
    max_regions: int = 100,
    score_threshold: float = 0.2,
    nms_threshold: float = 0.7,
) -> Tensor:
    """Selects the regions of one image (VL-BERT, section 4.1: 10 to 100, by a threshold on the detection scores).

    Duplicates are suppressed first. Of the remaining boxes, all with a score of at least `score_threshold` are kept,
    but at least the best `min_regions` and at most the best `max_regions`. There are fewer than `min_regions` only if
    suppression leaves fewer.
    """
    kept = suppress(boxes, scores, nms_threshold)
    confident = int((scores[kept] >= score_threshold).sum())
    return kept[: min(max(confident, min_regions), max_regions)]

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Targets over the regions of a phrase: distributions that say how much attention each region should get.

A target is made from the boxes of a phrase and those of the regions, or is given. Every one adds up to 1: what is
made from a box is computed in logarithms, so that a thin box keeps its target, which vanishes in the authors' code.

Shape letters: B batch, P phrases, G gold boxes of a phrase, R regions.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from grounded_attention.utils.named_types import Batch

from .alignment import region_mask, require

Target = Literal["indicator", "touched", "overlap", "gaussian", "fitts", "mixture", "given"]
# What a box is widened to, and the part of a region that is rounding.
SMALLEST_BOX = 1e-6
ROUNDING = 1e-5


def soft_targets(batch: Batch, target: Target, spread: float) -> Tensor:
    """Makes the target of each phrase, (B, P, R) float32: 1 in sum, or 0 for a phrase that means no region.

    `indicator` and `given` read `phrase_regions` (B, P, R), as marks or as they are. The others weigh the regions of
    `phrase_boxes` (B, P, G, 4), -1 for padding, several boxes alike: `touched` (GUI-Actor), `overlap` (the part of the
    region in the box), `gaussian` (that times a Gaussian in the box, GUI-AIMA), `fitts` (the Gaussian's mass in the
    part of the region in the box, V2P), `mixture` (a Gaussian about the middle of the box that does not end with it,
    EASE). `spread` is the standard deviation of the Gaussian in sides of the box.
    """
    marks = batch["phrase_regions"]
    valid = region_mask(batch)
    if valid is None:
        visible = torch.ones_like(marks, dtype=torch.bool)
    else:
        visible = valid[:, None].expand_as(marks)
    if target in ("indicator", "given"):
        weights = (marks.bool() if target == "indicator" else marks).double() * visible
        if (weights < 0).any():
            raise ValueError("phrase_regions has numbers below 0, which no target of attention can be")
        return _normalised(weights).float()
    remedy = "make the batch with PatchGroundingProcessor, or give target='indicator'"
    require(batch, ("phrase_boxes", "region_boxes"), f"target={target!r} reads the boxes of phrases; {remedy}")
    boxes = batch["phrase_boxes"].double()
    regions = batch["region_boxes"].double()
    if batch.get("region_candidate_mask") is not None:
        visible = visible & batch["region_candidate_mask"].bool()[:, None]
    if batch.get("phrase_image") is not None:
        visible = visible & (batch["region_image"][:, None] == batch["phrase_image"][..., None])
    logs = log_weights(boxes, regions[:, None, None], target, spread)
    logs = logs.masked_fill(~visible[:, :, None], -torch.inf)
    known = logs.isfinite().any(-1, keepdim=True) & marks.any(-1)[..., None, None]
    of_boxes = torch.where(known, logs, 0.0).softmax(-1) * known
    return _normalised(of_boxes.sum(2)).float()


def log_weights(boxes: Tensor, regions: Tensor, target: Target, spread: float) -> Tensor:
    """Log of the weight of regions (..., R, 4) for boxes (..., 4), which are clipped to the image: (..., R).

    -inf for a region outside the box (not of a `mixture`), and for a box outside the image (padding).
    """
    starts = boxes[..., :2]
    ends = boxes[..., 2:]
    outside = ~((starts < 1) & (ends > 0) & (starts <= ends)).all(-1)
    low = starts.clamp(0, 1 - SMALLEST_BOX)
    high = torch.maximum(ends.clamp(0, 1), low + SMALLEST_BOX)
    middle = ((low + high) / 2)[..., None, :]
    side = (high - low)[..., None, :]
    begin = torch.maximum(low[..., None, :], regions[..., :2])
    end = torch.minimum(high[..., None, :], regions[..., 2:])
    sides = regions[..., 2:] - regions[..., :2]
    smallest = (ROUNDING * sides).clamp(max=SMALLEST_BOX / 2)
    inside = (end - begin > smallest).all(-1) & (sides > 0).all(-1)
    shared = torch.where(inside[..., None], end - begin, 1.0)
    if target in ("touched", "mixture"):
        logs = torch.zeros_like(shared[..., 0])
    elif target == "fitts":
        deviation = side * spread
        lower = torch.erf((begin - middle) / deviation / math.sqrt(2))
        upper = torch.erf((end - middle) / deviation / math.sqrt(2))
        logs = torch.where(inside[..., None], (upper - lower) / 2, 1.0).log().sum(-1)
    else:
        logs = (shared / torch.where(inside[..., None], sides, 1.0)).log().sum(-1)
    if target in ("gaussian", "mixture"):
        centres = (regions[..., :2] + regions[..., 2:]) / 2
        logs = logs - (((centres - middle) / (side * spread)) ** 2).sum(-1) / 2
    if target == "mixture":  # does not end with the box
        inside = (sides > 0).all(-1)
    return logs.masked_fill(~inside | outside[..., None], -torch.inf)


def _normalised(weights: Tensor) -> Tensor:
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0)

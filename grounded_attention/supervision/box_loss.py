# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A loss that predicts, from the state of a word, the box of what the word names; used together with attention losses.

Boxes are those of DETR (Carion et al., 2020): (center_x, center_y, width, height) divided by the image size.

Shape letters: B batch, T text, R regions.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from grounded_attention.utils.named_types import Batch, Columns, Fields

BOXES = "boxes"  # the loss component
WORD_BOXES = "word_boxes"  # what `prepare_batch` adds to a batch


class BoxLoss:
    """The squared error between the box of a grounded word and the box that the model predicts (`outputs.pred_boxes`).

    Each supervision method has its own weight of this loss, so methods can be compared with and without it.
    """

    layer = 0  # whose states predict the boxes

    def __init__(self, weight: float):
        self.weight = float(weight)

    @property
    def model_config(self) -> Fields:
        """The configuration fields that a model needs for this loss."""
        return {"box_layer": self.layer if self.weight else None}

    def check_model(self, model: Any) -> None:
        """Checks that a model has a box head in this layer."""
        if not self.weight or not hasattr(model.config, "box_layer"):
            return
        if getattr(model, "box_head", None) is None:
            head = "none"
        else:
            head = f"one in layer {model.config.box_layer}"
        if head != f"one in layer {self.layer}":
            raise ValueError(
                f"box_weight={self.weight:g} needs a box head in layer {self.layer}, but this "
                f"{type(model).__name__} has {head}: make a model for VGP with config.box_layer={self.layer}, or "
                "set box_weight=0"
            )

    def prepare_batch(self, aligned: Tensor, batch: Batch) -> Fields:
        """Computes the entry `WORD_BOXES`, which the methods below read."""
        if batch.get("region_boxes") is None:
            raise ValueError("the batch has no region_boxes (B, R, 4), corners in [0, 1]: box_weight needs them")
        return {WORD_BOXES: dict(zip(("boxes", "named"), word_boxes(aligned, batch["region_boxes"]), strict=True))}

    def counts(self, prepared: Columns) -> dict[str, Tensor]:
        """Returns component -> number of words with a region, () int64."""
        return {BOXES: prepared[WORD_BOXES]["named"].sum()}

    def losses(self, outputs: Any, prepared: Columns) -> dict[str, tuple[Tensor, Tensor]]:
        """Returns component -> (sum, count)."""
        boxes = prepared[WORD_BOXES]["boxes"]
        named = prepared[WORD_BOXES]["named"]
        pred_boxes = getattr(outputs, "pred_boxes", None)
        if pred_boxes is None or pred_boxes.shape != boxes.shape:
            returned = "no pred_boxes" if pred_boxes is None else f"pred_boxes of the shape {tuple(pred_boxes.shape)}"
            raise ValueError(
                f"the outputs have {returned}: box_weight needs a box for each word, {tuple(boxes.shape)}"
            )
        return {BOXES: (self.weight * box_loss(pred_boxes, boxes, named), named.sum())}


def word_boxes(aligned: Tensor, region_boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the box that encloses the regions of each word."""
    # One extra region that belongs to no word, because amin and amax fail on an empty axis.
    aligned = F.pad(aligned, (0, 1))
    boxes = F.pad(region_boxes.float(), (0, 0, 0, 1))
    without = ~aligned[..., None]
    low = boxes[:, None, :, :2].masked_fill(without, torch.inf).amin(2)
    high = boxes[:, None, :, 2:].masked_fill(without, -torch.inf).amax(2)
    named = aligned.any(-1)
    boxes = torch.cat([(low + high) / 2, high - low], -1)
    return boxes.masked_fill(~named[..., None], 0.0), named


def box_loss(pred_boxes: Tensor, boxes: Tensor, named: Tensor) -> Tensor:
    """Computes the squared error of the four numbers, summed over the words with a region."""
    return ((pred_boxes.float() - boxes) * named[..., None]).square().sum()

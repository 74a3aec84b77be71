# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The box of what a word names, which its state must tell: a loss component beside supervised attention.

Boxes are those of DETR (Carion et al., 2020): (center_x, center_y, width, height) divided by the image size.

Shape letters: B batch, T text, R regions.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

BOXES = "boxes"  # the loss component
WORD_BOXES = "word_boxes"  # what `prepare_batch` adds to a batch


class BoxLoss:
    """The squared error between a grounded word's box and what its state says of it (`outputs.pred_boxes`).

    A method of supervision chooses its weight, since methods are compared with and without it.

    Args:
        weight: factor of the loss; 0 for none, and then no method does anything.
        layer: the layer, from 0 on, after which the states are read.

    Raises:
        ValueError: a weight below 0 or without end, or a layer that is no index or has nothing to do.
    """

    def __init__(self, weight: float = 0.0, layer: int = 0):
        if type(weight) not in (int, float) or not 0 <= weight < float("inf"):
            raise ValueError(f"box_weight={weight!r}: expected a number from 0 on")
        if type(layer) is not int or layer < 0:
            raise ValueError(f"box_layer={layer!r}: expected the index of a layer, from 0 on")
        if layer and not weight:
            raise ValueError(f"box_layer={layer} changes nothing while box_weight is 0: give both, or neither")
        self.weight, self.layer = float(weight), layer

    @property
    def model_config(self) -> dict[str, Any]:
        """Configuration fields that a model needs for it."""
        return {"box_layer": self.layer if self.weight else None}

    def check_model(self, model: Any) -> None:
        """Refuses (ValueError) a model without a box head in this layer."""
        if not self.weight or not hasattr(model.config, "box_layer"):
            return  # not one of ours: its outputs tell
        found = "none" if getattr(model, "box_head", None) is None else f"one in layer {model.config.box_layer}"
        if found != f"one in layer {self.layer}":
            raise ValueError(
                f"box_weight={self.weight:g} needs a box head in layer {self.layer}, and this "
                f"{type(model).__name__} has {found}: make a model for VGP with config.box_layer={self.layer}, or "
                "give box_weight=0"
            )

    def prepare_batch(self, aligned: Tensor, batch: Mapping[str, Any]) -> dict[str, Any]:
        """What the calls below read of a batch, `WORD_BOXES`.

        Args:
            aligned: (B, T, R) bool, see `align`.
            batch: with `region_boxes`.
        """
        if not self.weight:
            return {}
        if batch.get("region_boxes") is None:
            raise ValueError("the batch holds no region_boxes (B, R, 4), corners in [0, 1]: box_weight needs them")
        return {WORD_BOXES: dict(zip(("boxes", "named"), word_boxes(aligned, batch["region_boxes"]), strict=True))}

    def counts(self, prepared: Mapping[str, Any]) -> dict[str, Tensor]:
        """Component -> how many words are named, () int64."""
        return {BOXES: prepared[WORD_BOXES]["named"].sum()} if self.weight else {}

    def losses(self, outputs: Any, prepared: Mapping[str, Any]) -> dict[str, tuple[Tensor, Tensor]]:
        """Component -> (sum, count)."""
        if not self.weight:
            return {}
        boxes, named = prepared[WORD_BOXES]["boxes"], prepared[WORD_BOXES]["named"]
        pred_boxes = getattr(outputs, "pred_boxes", None)
        if pred_boxes is None or pred_boxes.shape != boxes.shape:
            found = "no pred_boxes" if pred_boxes is None else f"pred_boxes of the shape {tuple(pred_boxes.shape)}"
            raise ValueError(f"the outputs hold {found}: box_weight needs a box for every word, {tuple(boxes.shape)}")
        return {BOXES: (self.weight * box_loss(pred_boxes, boxes, named), named.sum())}


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

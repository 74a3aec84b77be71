# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The mean of the attention losses over all heads of all layers, and the loss of a box from the state of a word.

Boxes are those of DETR (Carion et al., 2020): (center_x, center_y, width, height) divided by the image size.

Shape letters: L layers, B batch, H heads, Q queried rows, K queried columns, T text, R regions.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from grounded_attention.modeling.task_losses import Counts, Loss, Losses
from grounded_attention.utils.named_types import Batch, Columns, Fields

from .alignment import require
from .row_states import AttentionPair, RowStates, layers_at_once, stack_states
from .score_masks import is_hidden

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
        require(batch, ("region_boxes",), "box_weight needs them, (B, R, 4), corners in [0, 1]")
        return {WORD_BOXES: dict(zip(("boxes", "named"), word_boxes(aligned, batch["region_boxes"]), strict=True))}

    def counts(self, prepared: Columns) -> Counts:
        """Returns component -> number of words with a region, () int64."""
        return {BOXES: prepared[WORD_BOXES]["named"].sum()}

    def losses(self, outputs: Any, prepared: Columns) -> Losses:
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


LayerReport = AttentionPair | RowStates


def sum_layers(reports: Sequence[LayerReport], gold: Tensor, rows_loss: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """Sums the losses of all rows, each averaged over all heads of the layers that see a gold column of the row."""
    losses: list[Tensor] = []
    heads: list[Tensor] = []  # that see a gold column of the row
    for group in _group_layers(reports):
        log_alpha, columns = _stack(group)
        visible = gold.to(columns.device) & columns
        num_heads = log_alpha.shape[2]
        losses.append(num_heads * rows_loss(log_alpha, visible).sum(0).to(gold.device))
        num_layers = visible.any(-1).sum(0).to(gold.device)
        heads.append(num_heads * len(log_alpha) // len(columns) * num_layers)
    num_heads_of_rows = reduce(torch.add, heads)  # (B, Q)
    means = reduce(torch.add, losses) / num_heads_of_rows.clamp(min=1)
    return means.sum(), (num_heads_of_rows > 0).sum()


def read_pairs(reports: Sequence[LayerReport]) -> list[AttentionPair]:
    """The attention of the layers, (B, H, Q, K) and (B, H, Q) or None each; that of small ones is computed at once."""
    pairs: list[AttentionPair] = []
    for group in _group_layers(reports):
        states = [report for report in group if isinstance(report, RowStates)]
        if states:
            alpha, share = stack_states(states).pair()
            pairs += zip(alpha, [None] * len(alpha) if share is None else share, strict=True)
        pairs += [report for report in group if not isinstance(report, RowStates)]
    return pairs


def _group_layers(reports: Sequence[LayerReport]) -> list[list[LayerReport]]:
    """Groups layers whose losses are computed at once: a few large operations take less time than many small ones."""
    groups: list[list[LayerReport]] = []
    room = 0
    for report in reports:
        if room > 0 and _fit(groups[-1][0], report):
            groups[-1].append(report)
            room -= 1
        else:
            groups.append([report])
            room = layers_at_once(*_size(report)) - 1
    return groups


def _fit(one: LayerReport, other: LayerReport) -> bool:
    if isinstance(one, RowStates) or isinstance(other, RowStates):
        return isinstance(one, RowStates) and isinstance(other, RowStates) and one.fits(other)
    return (one[0].shape, one[0].device) == (other[0].shape, other[0].device)


def _size(report: LayerReport) -> tuple[int, torch.device]:
    if isinstance(report, RowStates):
        return (report.size(), report.keys.device)
    return (report[0].numel(), report[0].device)


def _stack(reports: Sequence[LayerReport]) -> tuple[Tensor, Tensor]:
    """The log attention of a group, (L, B, H, Q, K), and its visible columns, (1 or L, B, 1 or Q, K)."""
    states = [report for report in reports if isinstance(report, RowStates)]
    if states:
        together = states[0] if states[0].rows.dim() == 5 else stack_states(states)  # read of several layers at once
        return together.log_alpha(), together.visible_columns()[None]
    log_alpha = torch.stack([report[0] for report in reports if not isinstance(report, RowStates)])
    # Columns that some heads do not see are hidden too, as padded ones are.
    return log_alpha, ~is_hidden(log_alpha.detach().amin(2))

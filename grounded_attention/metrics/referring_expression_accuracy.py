# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Accuracy of referring expressions: how many sentences have the right box found for them."""

from collections.abc import Sequence
from dataclasses import dataclass

from grounded_attention.utils.boxes import box_iou


@dataclass(frozen=True)
class Convention:
    """When a box counts as the right one.

    Args:
        plus_one (`bool`): Whether boxes (in pixels) cover their last pixel, see `box_iou`.
        strict (`bool`, *optional*, defaults to `False`): Whether the overlap must exceed the threshold, rather than
            reach it.
        threshold (`float`, *optional*, defaults to `0.5`): Intersection over union.
    """

    plus_one: bool
    strict: bool = False
    threshold: float = 0.5

    def holds(self, overlap: float) -> bool:
        """Whether a box with this intersection over union is right."""
        return overlap > self.threshold if self.strict else overlap >= self.threshold


CONVENTIONS: dict[str, Convention] = {
    # The evaluator of VL-BERT's public code, and of MAttNet, whose detections it reads.
    "vl_bert": Convention(plus_one=True),
    # What VL-BERT trains as a positive region.
    "vl_bert_label": Convention(plus_one=True, strict=True),
    # Boxes as areas: ViLBERT, and most work since.
    "continuous": Convention(plus_one=False),
    "continuous_strict": Convention(plus_one=False, strict=True),
}


def get_convention(name: str) -> Convention:
    """
    The convention of that name.

    Raises:
        ValueError: an unknown one; the message names all.
    """
    if name not in CONVENTIONS:
        raise ValueError(f"unknown convention {name!r}; known: {', '.join(CONVENTIONS)}")
    return CONVENTIONS[name]


def is_right(predicted: Sequence[float] | None, gold: Sequence[float], convention: str = "vl_bert") -> bool:
    """
    Whether a predicted box finds the object; no box at all is a miss.

    Args:
        predicted (`Sequence[float] | None`): x1, y1, x2, y2 in pixels; None (or nothing) for an image without
            detections.
        gold (`Sequence[float]`): the object's box.
        convention (`str`, *optional*, defaults to `"vl_bert"`): a name in `CONVENTIONS`.
    """
    rule = get_convention(convention)
    if predicted is None or len(predicted) == 0:
        return False
    return rule.holds(float(box_iou([predicted], [gold], rule.plus_one)[0, 0]))

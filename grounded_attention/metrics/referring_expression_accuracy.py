# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Accuracy of referring expressions: the share of sentences with the right predicted box."""

from collections.abc import Sequence
from dataclasses import dataclass

from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou


@dataclass(frozen=True)
class Convention:
    """The rule for a right box."""

    plus_one: bool
    strict: bool = False
    threshold: float = IOU_THRESHOLD

    def holds(self, overlap: float) -> bool:
        """Whether a box with this intersection over union is right."""
        if self.strict:
            return overlap > self.threshold
        return overlap >= self.threshold


CONVENTIONS: dict[str, Convention] = {
    # The evaluation of VL-BERT's public code, and of MAttNet, whose detections it uses.
    "vl_bert": Convention(plus_one=True),
    # A positive region in VL-BERT's training.
    "vl_bert_label": Convention(plus_one=True, strict=True),
    # Boxes as areas: ViLBERT and most later work.
    "continuous": Convention(plus_one=False),
    "continuous_strict": Convention(plus_one=False, strict=True),
}


def is_right(predicted: Sequence[float] | None, gold: Sequence[float], convention: str = "vl_bert") -> bool:
    """
    Whether a predicted box finds the object; a missing box is a miss.

    Args:
        predicted (`Sequence[float] | None`): x1, y1, x2, y2 in pixels; None or empty for an image without detections.
        gold (`Sequence[float]`): box of the object, x1, y1, x2, y2 in pixels.
        convention (`str`, *optional*, defaults to `"vl_bert"`): key of `CONVENTIONS`.
    """
    rule = CONVENTIONS[convention]
    if predicted is None or len(predicted) == 0:
        return False
    return rule.holds(float(box_iou([predicted], [gold], rule.plus_one)[0, 0]))

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Referring expressions (VL-BERT, section 4.2.3): predict the region of the image that a sentence names."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from grounded_attention.analysis.relevancy import ReadOut
from grounded_attention.metrics.item_scores import ItemScores, Scored
from grounded_attention.modeling.task_losses import region_sum
from grounded_attention.pages.failures import Judged
from grounded_attention.pages.overlay import GOLD, PREDICTED, Box
from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou
from grounded_attention.utils.named_types import Batch, Fields
from grounded_attention.utils.schema import Of, Section, Share

from .flipping import flip_some
from .judges import NO_BOX, JudgeContext, Rows, corners, format_box
from .task import Examples, LossComponent, Metric, Task, identify, seen_arguments


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


IGNORED = -100.0
# Boxes are divided by the image size, in float32; the original files have pixels with two decimals. Rounding to this
# number of decimals restores the original values, and so overlaps that equal the threshold.
DECIMALS = 3


ConventionName = Annotated[str, Of(tuple(CONVENTIONS))]


@dataclass(frozen=True)
class ReferringExpressionOptions(Section):
    """Options of the task."""

    label_convention: ConventionName = "vl_bert_label"
    convention: ConventionName = "vl_bert"
    whole_image: bool = True
    flip_probability: Share = 0.0


class ReferringExpressions(Task):
    """A choice among the regions of an image."""

    name = "referring_expressions"
    title = "referring expressions"
    builder = "refcoco"
    columns = ("example_id", "image_id", "text", "width", "height", "phrases")
    head = "referring_expressions"
    Options = ReferringExpressionOptions
    explains = True
    needs_regions = True
    empty_images = True
    example = """inputs = processor(caption, **seen)
with torch.no_grad():
    scores = model(**inputs).logits[0][inputs["region_candidate_mask"][0]]
print(f"what the caption names: box {{boxes[scores.argmax()]}}")"""

    @property
    def losses(self) -> tuple[LossComponent, ...]:
        return (LossComponent("regions", region_loss, lambda batch: (batch["region_targets"] >= 0).sum()),)

    def metrics(self) -> list[Metric]:
        convention = self.options.convention
        return [ItemScores("expressions", lambda outputs, batch: score(outputs, batch, convention))]

    def collate(self, examples: Examples, processor: Any) -> Fields:
        options = self.options
        rows = examples.rows
        regions = examples.regions
        images = examples.images
        if regions is None:
            raise ValueError("referring expressions need regions: set data.regions to a region table")
        # Computed before the flip, which does not change overlaps.
        right = []
        for one, record in zip(rows, regions, strict=True):
            right.append(_right_regions(one, record.boxes, options.label_convention))
        texts = [row["text"] for row in rows]
        if images is not None and examples.training and options.flip_probability:
            generators = [examples.generator(row["example_id"]) for row in rows]
            texts, regions, images, _ = flip_some(texts, regions, images, generators, options.flip_probability)
        visual = seen_arguments(images, regions)
        batch = processor(text=texts, layout="caption", return_tensors="pt", **visual).reported()
        targets = torch.full(batch["region_candidate_mask"].shape, IGNORED)
        # In a family without a region for the whole image, the first region is a detection, or padding.
        whole_image = (batch["region_attention_mask"].bool() & ~batch["region_candidate_mask"].bool())[:, :1].any(1)
        for row, columns, whole, values in zip(
            targets, batch["region_candidate_mask"], whole_image, right, strict=True
        ):
            row[:1] = float(values[0]) if options.whole_image and whole else IGNORED
            row[columns] = torch.from_numpy(values[1:])[: int(columns.sum())]
        return {
            **batch,
            **identify(rows),
            "region_targets": targets,
            "candidates": targets >= 0,
            "image_pixels": [(row["width"], row["height"]) for row in rows],
            "gold_boxes": [in_pixels(meant_box(row), row["width"], row["height"])[0].tolist() for row in rows],
        }

    def read_out(self, outputs: Any, inputs: Batch) -> ReadOut:
        """The score of the chosen region and the position that it is read from, its own."""
        best = outputs.logits.max(-1)
        return ReadOut(best.values, inputs["input_ids"].shape[1] + best.indices)

    def example_scores(self, outputs: Any, batch: Batch) -> Sequence[float | None]:
        """1 if the chosen region overlaps the named object enough."""
        return score(outputs, batch, self.options.convention).scores["expressions_accuracy"]

    def judge(self, outputs: Any, batch: Batch, rows: Rows, context: JudgeContext) -> Iterator[Judged]:
        """The score is added later, from the metric."""
        confidence = outputs.logits.float().sigmoid().masked_fill(~batch["candidates"], -1.0)
        for number, row in enumerate(rows):
            detected = bool(batch["region_candidate_mask"][number].any())
            best = int(confidence[number].argmax())
            gold = Box(GOLD, corners(torch.tensor(meant_box(row))), "gold")
            boxes = [gold]
            answer = NO_BOX
            certainty = 0.0
            if detected:
                predicted = Box(PREDICTED, corners(batch["region_boxes"][number, best]), "predicted")
                boxes.append(predicted)
                answer = format_box(predicted.corners, row)
                certainty = confidence[number, best].item()
            yield Judged(
                row["example_id"],
                row["image_id"],
                "expressions",
                None,
                certainty,
                format_box(gold.corners, row),
                answer,
                texts=(("sentence", row["text"]),),
                boxes=tuple(boxes),
            )


def meant_box(row: Any) -> Sequence[float]:
    """The box of the only phrase of a referring expression."""
    return row["phrases"][0]["boxes"][0]


def in_pixels(boxes: Any, width: int, height: int) -> np.ndarray:
    """Converts boxes (n, 4) divided by the image size to (n, 4) float64 in pixels."""
    return (np.asarray(boxes, dtype=np.float64).reshape(-1, 4) * [width, height, width, height]).round(DECIMALS)


def _right_regions(row: Any, boxes: np.ndarray, convention: str) -> np.ndarray:
    """(1 + n,) float32: 1 if the whole image, or a region, is the named object."""
    size = (row["width"], row["height"])
    candidates = in_pixels(np.concatenate([[[0, 0, 1, 1]], boxes]), *size)
    return np.array(_right(candidates, in_pixels(meant_box(row), *size), convention), dtype=np.float32)


def _right(boxes: np.ndarray, gold: Any, convention: str) -> list[bool]:
    """Whether each box (n, 4) in pixels overlaps the gold box enough."""
    rule = CONVENTIONS[convention]
    return [rule.holds(overlap) for overlap in box_iou(boxes, gold, rule.plus_one)[:, 0]]


def region_loss(outputs: Any, batch: Batch) -> Tensor:
    """Sums the binary cross-entropy of the candidate regions (VL-BERT public code)."""
    candidates = batch["region_targets"] >= 0
    return region_sum(outputs.logits[candidates], batch["region_targets"][candidates])[0]


def candidate_boxes(batch: Batch, row: int) -> np.ndarray:
    """Returns the boxes (n, 4) of the candidates of a row, in pixels; n is 0 for an image without detections."""
    if not batch["region_candidate_mask"][row].any():
        return np.zeros((0, 4))
    boxes = batch["region_boxes"][row][batch["candidates"][row]]
    return in_pixels(boxes.float().cpu().numpy(), *batch["image_pixels"][row])


def predicted_boxes(logits: Tensor, batch: Batch) -> list[list[float] | None]:
    """Returns the box of the best candidate of each example."""
    boxes = [candidate_boxes(batch, row) for row in range(len(logits))]
    scores = [row[chosen].float().cpu() for row, chosen in zip(logits, batch["candidates"], strict=True)]
    return [places[int(s.argmax())].tolist() if len(places) else None for places, s in zip(boxes, scores, strict=True)]


def score(outputs: Any, batch: Batch, convention: str) -> Scored:
    """Scores each sentence: the predicted box, the expected score of a random candidate, and of the best one."""
    predicted = predicted_boxes(outputs.logits, batch)
    gold = batch["gold_boxes"]
    right = [_right(candidate_boxes(batch, row), [box], convention) for row, box in enumerate(gold)]
    accuracy = [is_right(*pair, convention) for pair in zip(predicted, gold, strict=True)]
    chance = []
    for candidates in right:
        chance.append(sum(candidates) / len(candidates) if candidates else 0.0)
    return Scored(
        scores={
            "expressions_accuracy": accuracy,
            "expressions_chance": chance,
            "expressions_upper_bound": [any(candidates) for candidates in right],
        },
        totals={"expressions_without_detections": sum(box is None for box in predicted)},
        notes={"box": predicted},
    )


TASK = ReferringExpressions()

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What the judges of tasks share: names of classes and words, choices between classes, boxes as words."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from grounded_attention.metrics.item_scores import StreamingMetric
from grounded_attention.pages.failures import Judged
from grounded_attention.utils.boxes import in_pixels
from grounded_attention.utils.named_types import Batch, Columns, Corners, Fields, Row

Rows = Sequence[Columns]
JudgeTask = Callable[[Any, Columns, Rows, "JudgeContext"], Iterator[Judged]]
NO_BOX = "no region in this image"


@dataclass(frozen=True)
class JudgeContext:
    """Names of classes and words, which the text of a prediction needs."""

    config: Any
    tokenizer: Any
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    region_names: Sequence[str] = ()
    background: bool = True

    def label(self, column: str, number: int) -> str:
        """Returns the name of a class of a column."""
        return _name(self.labels.get(column, ()), number, f"class {number}")

    def region(self, number: int) -> str:
        """Returns the name that the detector gives to a region class of the model."""
        if self.background and number == 0:
            return "background"
        return _name(self.region_names, number - self.background, f"class {number}")


def _name(names: Sequence[str], number: int, default: str) -> str:
    if 0 <= number < len(names):
        return names[number]
    return default


def classified(probabilities: Tensor, gold: int, named: Sequence[str]) -> Fields:
    """Score, confidence and names for a choice between classes; the gold label is unknown if it is negative."""
    best = int(probabilities.argmax())
    best_class = {"confidence": probabilities[best].item(), "predicted": named[best]}
    if gold < 0:
        return {**best_class, "score": None, "gold": ""}
    known = {"gold": named[gold], "kinds": {"right answer": named[gold]}, "worth": {named[gold]: 1.0}}
    return {**best_class, **known, "score": float(best == gold), "chance": 1 / len(named)}


def format_box(corners: Sequence[float], row: Row) -> str:
    """Formats a box in pixels, such as `box 3, 4 to 80, 95`."""
    x1, y1, x2, y2 = map(round, in_pixels(corners, row["width"], row["height"]))
    return f"box {x1}, {y1} to {x2}, {y2}"


def corners(box: Tensor) -> Corners:
    x1, y1, x2, y2 = box.float().tolist()
    return x1, y1, x2, y2


class Judge(StreamingMetric):
    """Collects all predictions of an evaluation, of rows in this order by one process: a metric without numbers."""

    def __init__(self, judge: JudgeTask, rows: Any, context: JudgeContext):
        super().__init__()
        self.judge = judge
        self.rows = rows
        self.context = context
        self.judged: list[Judged] = []
        self._seen = 0

    def update(self, outputs: Any, batch: Batch) -> None:
        """Adds the predictions for the next rows."""
        size = len(batch["input_ids"])
        rows = [self.rows[place] for place in range(self._seen, self._seen + size)]
        self.judged.extend(self.judge(outputs, batch, rows, self.context))
        self._seen += size

    def compute(self, state: Mapping[str, Tensor]) -> Fields:
        """Returns no numbers."""
        return {}


def with_scores(judged: Sequence[Judged], items: Mapping[str, Sequence[Any]]) -> list[Judged]:
    """Adds the scores of the metric of the task to predictions."""
    if not items or not judged:
        return list(judged)
    unknown = [None] * len(judged)
    accuracies = items.get(f"{judged[0].group}_accuracy", unknown)
    chances = items.get(f"{judged[0].group}_chance", unknown)
    scored = []
    for one, score, chance in zip(judged, accuracies, chances, strict=True):
        scored.append(replace(one, score=score, chance=one.chance if chance is None else chance))
    return scored

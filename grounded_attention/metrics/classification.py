# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Accuracy of a classifier, with the accuracy of always predicting the most frequent class."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .streaming import StreamingMetric


class ClassificationAccuracy(StreamingMetric):
    """Share of labelled items whose largest logit is the label.

    Args:
        name (`str`): prefix of the reported metrics.
        logits (`str`): name of the model output, (..., C).
        labels (`str | Callable[[Mapping[str, Any]], Tensor | None]`): name of the batch entry, (...) int64, or a
            function that returns it from the batch. Negative labels do not count; a batch without the entry (or None
            from the function) adds nothing.
    """

    def __init__(self, name: str, logits: str, labels: str | Callable[[Mapping[str, Any]], Tensor | None]):
        super().__init__()
        self.name = name
        self.logits = logits
        self.labels = (lambda batch: batch.get(labels)) if isinstance(labels, str) else labels

    def update(self, outputs: Any, batch: Mapping[str, Tensor]) -> None:
        """Counts one batch."""
        labels = self.labels(batch)
        if labels is None:
            return
        logits = getattr(outputs, self.logits)
        labelled = labels >= 0
        predicted = logits[labelled].argmax(-1)
        labels = labels[labelled]
        classes = torch.bincount(labels, minlength=logits.shape[-1])
        self._add(correct=(predicted == labels).sum(), classes=classes)

    def compute(self, state: Mapping[str, Tensor]) -> dict[str, float]:
        """`{name}_accuracy`, `..._majority` (accuracy of the most frequent label), `..._chance`, `..._count`: of the
        sums `correct` () and `classes` (C,), how often each label occurs.

        Only the count if no item has a label; empty if no batch had labels.
        """
        if not state:
            return {}
        total = state["classes"].sum().item()
        if not total:
            return {f"{self.name}_count": 0}
        return {
            f"{self.name}_accuracy": state["correct"].item() / total,
            f"{self.name}_majority": state["classes"].max().item() / total,
            f"{self.name}_chance": 1 / len(state["classes"]),
            f"{self.name}_count": int(total),
        }

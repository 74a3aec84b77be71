# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Accuracy of a classifier, beside the accuracy of always naming the most frequent class."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class ClassificationAccuracy:
    """Share of labelled items whose largest logit is the label.

    Args:
        name: prefix of the reported figures.
        logits: name of the model output, (..., C).
        labels: name of the batch entry, (...) int64; negative labels do not count.
    """

    def __init__(self, name: str, logits: str, labels: str):
        self.name, self.logits, self.labels = name, logits, labels
        self._state: dict[str, Tensor] = {}

    def forward_kwargs(self, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        """Nothing beyond the model's ordinary inputs."""
        return {}

    def update(self, outputs: Any, batch: Mapping[str, Tensor]) -> None:
        """Counts one batch."""
        logits, labels = getattr(outputs, self.logits), batch[self.labels]
        labelled = labels >= 0
        predicted, labels = logits.argmax(-1)[labelled], labels[labelled]
        classes = torch.bincount(labels, minlength=logits.shape[-1]).double()
        counted = {"correct": (predicted == labels).sum().double(), "classes": classes}
        for key, value in counted.items():
            self._state[key] = self._state[key] + value if key in self._state else value

    def state(self) -> dict[str, Tensor]:
        """Sums so far: `correct` () and `classes` (C), how often each label occurred."""
        return dict(self._state)

    def compute(self, state: Mapping[str, Tensor]) -> dict[str, float]:
        """`{name}_accuracy`, `..._majority` (of always naming the most frequent label), `..._chance`, `..._count`."""
        total = state["classes"].sum().item()
        if not total:
            return {f"{self.name}_count": 0}
        return {
            f"{self.name}_accuracy": state["correct"].item() / total,
            f"{self.name}_majority": state["classes"].max().item() / total,
            f"{self.name}_chance": 1 / len(state["classes"]),
            f"{self.name}_count": int(total),
        }

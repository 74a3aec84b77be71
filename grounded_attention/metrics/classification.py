# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Accuracy of a classifier beside the most frequent class, how well scores tell two kinds apart, and calibration."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grounded_attention.supervision import GroundingAlignment
from grounded_attention.supervision.method import RowGenerators, fixed_generator
from grounded_attention.utils.named_types import Batch, Columns, Fields

from .item_scores import StreamingMetric
from .significance import Estimate, estimate_statistic


class ClassificationAccuracy(StreamingMetric):
    """Share of labelled items whose largest logit is the label.

    Args:
        name (`str`): prefix of the reported metrics.
        logits (`str`): name of the model output, (..., C).
        labels (`str | Callable[[Mapping[str, Any]], Tensor | None]`): name of the batch entry, (...) int64, or a
            function that returns it from the batch. Negative labels do not count; a batch without the entry (or None
            from the function) adds nothing.
    """

    def __init__(self, name: str, logits: str, labels: str | Callable[[Columns], Tensor | None]):
        super().__init__()
        self.name = name
        self.logits = logits
        self.labels = (lambda batch: batch.get(labels)) if isinstance(labels, str) else labels

    def update(self, outputs: Any, batch: Batch) -> None:
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


class AlignmentAccuracy(StreamingMetric):
    """Share of drawn pairs whose score has the right sign; half of the pairs belong together.

    Args:
        method (`GroundingAlignment`): the method, which draws the pairs as in training.
    """

    def __init__(self, method: GroundingAlignment):
        super().__init__()
        self.method = method

    def prepare_batch(self, batch: Batch, generators: RowGenerators = fixed_generator) -> Fields:
        """The pairs to add to a batch."""
        return self.method.prepare_batch(batch, generators)

    def forward_kwargs(self, batch: Batch) -> Fields:
        """Requests the scores of the pairs."""
        return self.method.forward_kwargs(batch)

    def update(self, outputs: Any, batch: Batch) -> None:
        """Counts one batch."""
        drawn, labels = self.method.drawn(batch)
        right = (outputs.alignment_logits > 0) == (labels > 0)
        self._add(right=right[drawn].sum(), pairs=drawn.sum())

    def compute(self, state: Mapping[str, Tensor]) -> dict[str, float]:
        """`alignment_accuracy`, `alignment_chance` (one half) and `alignment_count`; only the count without pairs."""
        if not state:
            return {}
        pairs = state["pairs"].item()
        if not pairs:
            return {"alignment_count": 0}
        right = state["right"].item() / pairs
        return {"alignment_accuracy": right, "alignment_chance": 0.5, "alignment_count": int(pairs)}


def auroc(scores: npt.ArrayLike, positive: npt.ArrayLike, image_ids: Sequence[str]) -> Estimate:
    """The probability that a positive item has a higher score than another one, ties half; over images.

    Args:
        scores (array): (n,), finite.
        positive (array): (n,) of 0 and 1, both at least once.
        image_ids (`Sequence[str]`): the image of each item; an interval draws whole images.
    """
    _, place = np.unique(scores, return_inverse=True)
    labels = np.asarray(positive, dtype=float)

    def statistic(counts: np.ndarray) -> float:
        positives = np.bincount(place, counts * labels)
        negatives = np.bincount(place, counts * (1 - labels))
        lower = negatives.cumsum() - negatives / 2
        pairs = positives.sum() * negatives.sum()
        return float(positives @ lower / pairs) if pairs else 0.5  # a draw of one kind alone is at chance

    return estimate_statistic(statistic, image_ids)


def calibration_error(probabilities: np.ndarray, positive: npt.ArrayLike, image_ids: Sequence[str]) -> Estimate:
    """The expected calibration error (ECE) of ten equal bins, in [0, 1] (Guo et al., 2017); as for [`auroc`]."""
    bins = np.minimum((probabilities * 10).astype(int), 9)
    excess = probabilities - np.asarray(positive)

    def statistic(counts: np.ndarray) -> float:
        return float(np.abs(np.bincount(bins, counts * excess)).sum() / counts.sum())

    return estimate_statistic(statistic, image_ids)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Scores of visually grounded paraphrases: precision, recall and F1, and the threshold tuned for F1."""

from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import evaluate
import numpy as np
import numpy.typing as npt


def precision_recall_f1(predicted: npt.ArrayLike, gold: npt.ArrayLike) -> dict[str, float]:
    """
    `precision`, `recall` and `f1` of a yes-or-no question; 0 where nothing was predicted or nothing is right.

    Args:
        predicted: (n,) bool.
        gold: (n,) bool.
    """
    predicted, gold = np.asarray(predicted, dtype=bool), np.asarray(gold, dtype=bool)
    both = int((predicted & gold).sum())
    precision, recall = (both / count if count else 0.0 for count in (int(predicted.sum()), int(gold.sum())))
    f1 = 2 * precision * recall / (precision + recall) if both else 0.0
    return {"precision": precision, "recall": recall, "f1": f1}


def best_threshold(scores: npt.ArrayLike, gold: npt.ArrayLike) -> float:
    """
    The score from which to call a pair a paraphrase so that F1 is largest; tuned on validation, used on test.

    Args:
        scores: (n,) higher is more likely a paraphrase.
        gold: (n,) bool.

    Raises:
        ValueError: no pair, or none that is a paraphrase.
    """
    scores, gold = np.asarray(scores, dtype=np.float64), np.asarray(gold, dtype=bool)
    if not gold.any():
        raise ValueError(f"a threshold can't be tuned on {len(gold)} pairs of which none is a paraphrase")
    order = np.argsort(-scores, kind="stable")
    scores, right = scores[order], gold[order].cumsum()
    f1 = 2 * right / (np.arange(1, len(order) + 1) + right[-1])
    # Equal scores fall on the same side: only the last of them can be the end of what is called a paraphrase.
    f1[:-1][scores[:-1] == scores[1:]] = -1
    return float(scores[f1.argmax()])


class VGPScores(evaluate.Metric):
    """
    Scores of phrase pairs, as an `evaluate` metric.

    `compute(predictions=[int], references=[int])` returns `accuracy` and, for each class of the references,
    `precision_<class>`, `recall_<class>`, `f1_<class>`, with `f1_macro`, their mean. Classes are numbers, or take
    their names from `names`.
    """

    def _info(self) -> evaluate.MetricInfo:
        label = datasets.Value("int64")
        return evaluate.MetricInfo(
            description="Accuracy, and precision, recall and F1 of each class of phrase pairs.",
            citation="Chu et al., 2018: iParaphrasing",
            inputs_description="predictions, references: classes of the pairs",
            features=datasets.Features({"predictions": label, "references": label}),
        )

    def _compute(
        self, predictions: list[int], references: list[int], names: Sequence[str] | None = None
    ) -> Mapping[str, Any]:
        predicted, gold = np.asarray(predictions), np.asarray(references)
        figures = {"accuracy": float((predicted == gold).mean())}
        f1 = []
        for label in np.unique(gold).tolist():
            scores = precision_recall_f1(predicted == label, gold == label)
            f1.append(scores["f1"])
            name = names[label] if names else str(label)
            figures |= {f"{figure}_{name}": value for figure, value in scores.items()}
        return figures | {"f1_macro": float(np.mean(f1))}

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Scores of visually grounded paraphrases: precision, recall and F1, and the threshold tuned for F1."""

import numpy as np
import numpy.typing as npt


def precision_recall_f1(predicted: npt.ArrayLike, gold: npt.ArrayLike) -> dict[str, float]:
    """
    Computes `precision`, `recall` and `f1` of a binary decision; 0 if nothing is predicted or nothing is right.

    Args:
        predicted (`npt.ArrayLike`): (n,) bool.
        gold (`npt.ArrayLike`): (n,) bool.
    """
    predicted, gold = np.asarray(predicted, dtype=bool), np.asarray(gold, dtype=bool)
    both = int((predicted & gold).sum())
    precision, recall = (both / count if count else 0.0 for count in (int(predicted.sum()), int(gold.sum())))
    f1 = 2 * precision * recall / (precision + recall) if both else 0.0
    return {"precision": precision, "recall": recall, "f1": f1}


def best_threshold(scores: npt.ArrayLike, gold: npt.ArrayLike) -> float:
    """The score threshold for a paraphrase with the largest F1; tune it on validation and use it on test."""
    scores, gold = np.asarray(scores, dtype=np.float64), np.asarray(gold, dtype=bool)
    if not gold.any():
        raise ValueError(f"found {len(gold)} pairs without a paraphrase; a threshold needs at least one paraphrase")
    order = np.argsort(-scores, kind="stable")
    scores, right = scores[order], gold[order].cumsum()
    f1 = 2 * right / (np.arange(1, len(order) + 1) + right[-1])
    # Equal scores are on the same side of a threshold, so only the last of them is a possible threshold.
    f1[:-1][scores[:-1] == scores[1:]] = -1
    return float(scores[f1.argmax()])

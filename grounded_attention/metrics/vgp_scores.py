# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Scores of visually grounded paraphrases: precision, recall and F1."""

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

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Scores of visually grounded paraphrases: precision, recall and F1, and the threshold tuned for F1."""

import numpy as np
import numpy.typing as npt


def precision_recall_f1(predicted: npt.ArrayLike, gold: npt.ArrayLike) -> dict[str, float]:
    """
    `precision`, `recall` and `f1` of a yes-or-no question; 0 where nothing was predicted or nothing is right.

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
    """
    The score from which to call a pair a paraphrase so that F1 is largest; tuned on validation, used on test.

    Args:
        scores (`npt.ArrayLike`): (n,) higher is more likely a paraphrase.
        gold (`npt.ArrayLike`): (n,) bool.

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

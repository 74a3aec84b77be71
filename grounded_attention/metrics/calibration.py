# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How well scores tell two kinds of items apart, and whether probabilities are as often right as they say."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .significance import Estimate, estimate_statistic


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

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The evidence score: whether a model is right for the right reason.

A question is asked about its picture with the evidence alone kept, masked, and replaced by what another picture has
there. Its *dependence* is right(kept) - (right(masked) + right(replaced)) / 2, which is 0 on average for any model
that guesses, and 0 for each question to one that does not look. *Attention* is the share of the question's words that
look at the evidence most, in the best head; above chance it is 0 on average for attention that does not look there.
The evidence score is the mean of their product: both must be there, at the same questions.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .significance import Estimate, estimate_ratio

WHOLE = "whole"
CHANGED = KEPT, MASKED, REPLACED = "kept", "masked", "replaced"
VIEWS = (WHOLE, *CHANGED)


def evidence_metrics(
    right: Mapping[str, Sequence[float]],
    image_ids: Sequence[str],
    heads: npt.ArrayLike | None = None,
    chance: npt.ArrayLike | None = None,
) -> dict[str, Estimate]:
    """Scores N questions; `right`: view of `VIEWS` -> whether each answer is right, 0 or 1.

    Of attention, `heads` (N, H) is the share of the question's grounded words whose most attended region is evidence,
    NaN for a question without such words, which counts for the answers alone, and `chance` (N,) that of a random
    region, below 1. Returned are `accuracy` and that of each view, `dependence`; with attention also `attention` (of
    the head that is best on the images of the other half), `agreement` (questions in which most words look at the
    evidence where the answer depends on it, and do not where it does not), and `evidence_score`.
    """
    views = {view: np.asarray(right[view], dtype=float) for view in VIEWS}
    dependence = views[KEPT] - (views[MASKED] + views[REPLACED]) / 2
    estimates = {
        "accuracy" if view == WHOLE else f"accuracy, {view}": estimate_ratio(values, None, image_ids)
        for view, values in views.items()
    }
    estimates["dependence"] = estimate_ratio(dependence, None, image_ids)
    if heads is None or chance is None:
        return estimates
    looked = best_head(np.asarray(heads, dtype=float), image_ids)
    lucky = np.asarray(chance, dtype=float)
    known = ~np.isnan(looked) & (lucky < 1)
    if not known.any():
        return estimates
    images = np.asarray(image_ids)[known].tolist()
    looked = looked[known]
    depends = dependence[known]
    above = (looked - lucky[known]) / (1 - lucky[known])
    estimates["attention"] = estimate_ratio(looked, None, images)
    estimates["agreement"] = estimate_ratio((looked > 0.5) == (depends > 0), None, images)
    estimates["evidence_score"] = estimate_ratio(depends * above, None, images)
    return estimates


def best_head(heads: np.ndarray, image_ids: Sequence[str]) -> np.ndarray:
    """(N,) the values (N, H) of the head that is best on the other half of the images: one that was chosen on the same
    questions would look better than it is."""
    _, image = np.unique(np.asarray(image_ids), return_inverse=True)
    sides = np.random.default_rng(0).permutation(image.max() + 1)[image] % 2
    means = [np.nanmean(heads[sides == side], 0) if (sides == side).any() else None for side in (0, 1)]
    chosen = [int(np.argmax(np.nan_to_num(each))) if each is not None else 0 for each in means]
    return np.where(sides == 0, heads[:, chosen[1]], heads[:, chosen[0]])

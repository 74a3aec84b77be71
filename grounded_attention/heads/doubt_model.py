# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The probability that a noun of an answer names nothing in the image: a logistic model of four numbers.

Shape letters: W words, E numbers of a word.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from grounded_attention.utils.schema import Section


@dataclass(frozen=True)
class DoubtModel(Section):
    """A logistic model of the numbers of a word: the entry `doubt` of `heads.json`.

    Args:
        bias (`float`): its constant.
        share, contribution, log_probability (`float`): weights of the numbers of `word_evidence`, without scaling.
        nouns (`list[str]`): the words that it was fitted on, in lower case; of others it says nothing.
    """

    bias: float
    share: float
    contribution: float
    log_probability: float
    nouns: list[str]

    def probabilities(self, evidence: npt.ArrayLike) -> np.ndarray:
        """(W,) float64: that words (W, E) name nothing in the image."""
        weights = [self.share, self.contribution, self.log_probability]
        return 1 / (1 + np.exp(-(np.asarray(evidence) @ weights + self.bias)))


def check_kinds(absent: Sequence[bool]) -> None:
    """A ValueError unless some nouns name nothing, and others something."""
    if len({*absent}) < 2:
        raise ValueError(
            f"answers have {len(absent)} nouns of --data, and not both nouns that name something in their image and "
            "nouns that name nothing there: give more rows"
        )


def fit_doubt(evidence: npt.ArrayLike, absent: Sequence[bool], nouns: Iterable[str]) -> DoubtModel:
    """Fits the model by L-BFGS, with a penalty of half the squared weights of the standardised numbers.

    Args:
        evidence (array): (W, E), finite.
        absent (`Sequence[bool]`): of each of the W words whether the word names nothing in the image.
        nouns (`Iterable[str]`): what the words can be.

    Raises:
        ValueError: if all words are of one kind, or a number is not finite.
    """
    check_kinds(absent)
    numbers = torch.from_numpy(np.array(evidence, dtype=np.float64))
    labels = torch.tensor(absent, dtype=torch.float64)
    if not numbers.isfinite().all():
        raise ValueError("a number of a noun is NaN or infinite; nothing can be fitted to it")
    scale, mean = torch.std_mean(numbers, 0, correction=0)
    scale = scale.clamp(min=1e-12)
    standard = (numbers - mean) / scale
    parameters = torch.zeros(numbers.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([parameters], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        search.zero_grad()
        logits = standard @ parameters[1:] + parameters[0]
        total = binary_cross_entropy_with_logits(logits, labels, reduction="sum")
        total = total + parameters[1:].square().sum() / 2
        total.backward()
        return total

    search.step(loss)
    fitted = parameters.detach()
    weights = fitted[1:] / scale
    bias = float(fitted[0] - weights @ mean)
    return DoubtModel(bias, *weights.tolist(), sorted(nouns))  # type: ignore[call-arg]

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Object hallucination (POPE, Li et al., 2023): accuracy, precision, recall and F1 of yes-or-no answers."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from grounded_attention.utils.named_types import Batch, Fields

from .item_scores import StreamingMetric

YES = "yes"
NO = "no"
OUTCOMES = ("hit", "false_alarm", "miss", "correct_rejection")


def read_yes_or_no(answer: str) -> str:
    """Reads a free answer as POPE does: "no" if its first sentence has the word no or not, otherwise "yes"."""
    words = re.findall(r"[a-z']+", answer.split(".")[0].lower())
    if {"no", "not"} & set(words):
        return NO
    return YES


def count_outcomes(predicted: Sequence[str], gold: Sequence[str]) -> dict[str, int]:
    """Counts the outcomes of answers."""
    names = {(YES, YES): "hit", (YES, NO): "false_alarm", (NO, YES): "miss", (NO, NO): "correct_rejection"}
    counts = dict.fromkeys(OUTCOMES, 0)
    for pair in zip(predicted, gold, strict=True):
        counts[names[pair]] += 1
    return counts


def hallucination_metrics(counts: Mapping[str, float]) -> dict[str, float]:
    """The metrics of [`count_outcomes`]: `accuracy`; `precision`, `recall` and `f1` of the answer yes; `yes_share`,
    the share of yes among the answers. A ratio without cases is 0."""
    hit, false_alarm, miss, rejection = (float(counts[name]) for name in OUTCOMES)
    return {
        "accuracy": _ratio(hit + rejection, hit + false_alarm + miss + rejection),
        "precision": _ratio(hit, hit + false_alarm),
        "recall": _ratio(hit, hit + miss),
        "f1": _ratio(2 * hit, 2 * hit + false_alarm + miss),
        "yes_share": _ratio(hit + false_alarm, hit + false_alarm + miss + rejection),
    }


def _ratio(part: float, whole: float) -> float:
    if whole:
        return part / whole
    return 0.0


class ObjectHallucination(StreamingMetric):
    """Streaming metric of generated answers to questions of the builder `pope`, for each sampling of their objects.

    The batch has the lists `sampling` (None for other rows), `answer` ("yes" or "no") and `generated`. Metrics:
    `hallucination_<sampling>_<metric>`, see [`hallucination_metrics`].
    """

    def update(self, outputs: Any, batch: Batch) -> None:
        """Counts one batch: `<sampling>:<outcome>` -> () float64."""
        for sampling, gold, answer in zip(batch["sampling"], batch["answer"], batch["generated"], strict=True):
            if sampling:
                counts = count_outcomes([read_yes_or_no(answer)], [gold])
                self._add(**{f"{sampling}:{name}": number for name, number in counts.items()})

    def compute(self, state: Mapping[str, Tensor]) -> Fields:
        """The metrics of a state."""
        metrics = {}
        for sampling in dict.fromkeys(key.partition(":")[0] for key in state):
            counts = {outcome: state[f"{sampling}:{outcome}"].item() for outcome in OUTCOMES}
            for name, value in hallucination_metrics(counts).items():
                metrics[f"hallucination_{sampling}_{name}"] = value
        return metrics

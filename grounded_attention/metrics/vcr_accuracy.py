# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VCR: accuracy of answers, of rationales, and of both together."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from .item_scores import check_complete


def joint_accuracy(
    answers: Mapping[Any, int],
    rationales: Mapping[Any, int],
    labels: Mapping[Any, tuple[int, int]],
) -> dict[str, float]:
    """
    Computes Q→A, QA→R and Q→AR; a question counts for Q→AR if its answer and its rationale are right.

    Args:
        answers (`Mapping[Any, int]`): question id -> chosen answer.
        rationales (`Mapping[Any, int]`): question id -> chosen rationale, given the right answer.
        labels (`Mapping[Any, tuple[int, int]]`): question id -> the right answer and rationale.

    Raises:
        ValueError: if a question has no choice; the message contains the question.
    """
    for name, chosen in (("answer", answers), ("rationale", rationales)):
        check_complete(labels, chosen, f"no chosen {name}")
    answered = [answers[question] == label[0] for question, label in labels.items()]
    explained = [rationales[question] == label[1] for question, label in labels.items()]
    both = [first and second for first, second in zip(answered, explained, strict=True)]
    return {"q_to_a": fmean(answered), "qa_to_r": fmean(explained), "q_to_ar": fmean(both)}

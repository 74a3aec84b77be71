# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VCR: accuracy of answers, of rationales, and of both together."""

from collections.abc import Mapping, Sequence
from typing import Any


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
        missing = sorted(map(str, labels.keys() - chosen.keys()))
        if missing:
            raise ValueError(f"{len(missing)} of {len(labels)} questions have no chosen {name}, such as {missing[0]}")
    answered = [answers[question] == label[0] for question, label in labels.items()]
    explained = [rationales[question] == label[1] for question, label in labels.items()]
    both = [first and second for first, second in zip(answered, explained, strict=True)]
    return {"q_to_a": _share(answered), "qa_to_r": _share(explained), "q_to_ar": _share(both)}


def _share(right: Sequence[bool]) -> float:
    return sum(right) / len(right)

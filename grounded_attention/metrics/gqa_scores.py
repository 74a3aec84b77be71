# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""GQA: the metrics of the official script, for one question, for a whole split, and over batches and processes.

An answer is right if it is the same text. All metrics but consistency are means over the balanced questions. The
script multiplies shares by 100; here they are in [0, 1]. `distribution` is the script's number, lower is better.
`words_N` and `steps_N` are its accuracies by the number of words and of reasoning steps. Its grounding score is
[`mean_grounding`], of attention maps.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from grounded_attention.utils.named_types import Batch, Columns, Fields

from .item_scores import ItemScores, Scored, check_complete

# The structural type of open questions; all others are binary.
OPEN = "query"
# What two things have in common is one of these answers; the lists of such questions are not used.
COMMON = "Common"
COMMON_ANSWERS = ("color", "material", "shape")
# Parts whose objects the grounding score reads.
GROUNDED = ("question", "fullAnswer")
# Steps that the script does not count.
UNCOUNTED = ("exist", "query: name", "choose name")
Question = Columns


def question_scores(prediction: str, question: Question) -> dict[str, float]:
    """Scores the answer to one question."""
    if not question["is_balanced"] or not question["answer"]:
        return {}
    right = float(prediction == question["answer"])
    structural = question["structural_type"]
    semantic = question["semantic_type"]
    names = (
        "accuracy",
        "open" if structural == OPEN else "binary",
        f"structural_{structural}",
        f"semantic_{semantic}",
        f"words_{len(question['text'].split()):02}",
        *([f"steps_{count_steps(question['semantic']):02}"] if question.get("semantic") else []),
    )
    scores = dict.fromkeys(names, right)
    if question["valid"] or question["plausible"]:
        common = COMMON in question["detailed_type"]
        for name, choices in (("validity", "valid"), ("plausibility", "plausible")):
            scores[name] = float(prediction in (COMMON_ANSWERS if common else question[choices]))
    return scores


def score_answers(predicted: Sequence[str], questions: Sequence[Question], prefix: str) -> Scored:
    """The scores of each question under `<prefix>_<name>`, None where it has none; `answer` notes the predictions."""
    scored = [question_scores(*pair) for pair in zip(predicted, questions, strict=True)]
    names = dict.fromkeys(name for scores in scored for name in scores)
    scores = {f"{prefix}_{name}": [each.get(name) for each in scored] for name in names}
    return Scored(scores, notes={"answer": predicted})


def count_steps(semantic: Iterable[Columns]) -> int:
    """The number of reasoning steps as the script counts them."""
    named = (f"{step['operation']}: {step['argument']}" for step in semantic)
    return sum(not any(each in name for each in UNCOUNTED) for name in named)


def grounding_score(annotations: Iterable[Columns], cells: npt.ArrayLike, attention: npt.ArrayLike) -> float:
    """The script's grounding score of a question: the attention on the objects that its words and those of its full
    answer mean, each annotation on its own, so that it may be above 1. `attention` (K,) on `cells` (K, 4), regions or
    the cells of a grid, counts by the part of the cell that is in the object.
    """
    places = np.asarray(cells, dtype=float)
    weights = np.asarray(attention, dtype=float)
    area = (places[:, 2:] - places[:, :2]).prod(1)
    score = 0.0
    for each in annotations:
        if each["part"] in GROUNDED and len(each["box"]):
            low = np.maximum(places[:, :2], each["box"][:2])
            high = np.minimum(places[:, 2:], each["box"][2:])
            score += float(weights @ (np.clip(high - low, 0, None).prod(1) / area))
    return score


def mean_grounding(
    questions: Iterable[Question], attention: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]]
) -> float:
    """The mean of [`grounding_score`] over the balanced questions; `attention` has cells and attention of each."""
    balanced = [each for each in questions if each["is_balanced"]]
    check_complete((each["example_id"] for each in balanced), attention, "no attention")
    if not any(len(mark["box"]) for each in balanced for mark in each.get("annotations") or ()):
        raise ValueError(
            "the file has attention, but no question has boxes: put the scene graphs into the data folder, or "
            "leave out the attention"
        )
    scores = [grounding_score(each["annotations"], *attention[each["example_id"]]) for each in balanced]
    return sum(scores) / len(scores)


def consistency(right: Mapping[Any, bool], entailed: Mapping[Any, Iterable[Any]]) -> float | None:
    """The share of right answers to the questions that a right answer entails: a mean for each question, then over
    them; 0 where a right answer entails nothing, as the script has it. None without questions, or if an entailed one
    has no answer.
    """
    if not entailed:
        return None
    means = []
    for number, listed in entailed.items():
        others = [other for other in listed if other != number]
        if any(other not in right for other in others):
            return None
        if right[number] and others:
            means.append(sum(right[other] for other in others) / len(others))
    if means:
        return sum(means) / len(means)
    return 0.0


def distribution(answers: Iterable[tuple[Hashable, Hashable, Hashable]]) -> float | None:
    """The distance of the predicted answers from the right ones: the chi-square statistic of each group of questions,
    its mean weighted by the questions of the group, divided by 100. An answer that is never right in its group adds
    nothing.
    """
    golds: dict[Hashable, Counter] = defaultdict(Counter)
    predictions: dict[Hashable, Counter] = defaultdict(Counter)
    for group, gold, prediction in answers:
        golds[group][gold] += 1
        predictions[group][prediction] += 1
    if not golds:
        return None
    weighted = sum(
        expected.total() * sum((predictions[group][gold] - count) ** 2 / count for gold, count in expected.items())
        for group, expected in golds.items()
    )
    return weighted / sum(expected.total() for expected in golds.values()) / 100


def gqa_scores(predictions: Mapping[str, str], questions: Iterable[Question]) -> dict[str, float]:
    """
    Scores the answers to the questions of a split.

    Args:
        predictions (`Mapping[str, str]`): question id -> answer, for at least every balanced question.
        questions (iterable of `Mapping[str, Any]`): rows of the builder `gqa`, with answers.

    Returns:
        `dict[str, float]`: the means of [`question_scores`], and `consistency` and `distribution` where they exist.
        Consistency needs the entailed questions too, most of which are not balanced.

    Raises:
        ValueError: if a balanced question has no prediction.
    """
    asked = list(questions)
    check_complete((each["example_id"] for each in asked if each["is_balanced"]), predictions, "no predictions")
    answered = [(predictions[each["example_id"]], each) for each in asked if each["example_id"] in predictions]
    by_name: dict[str, list[float]] = defaultdict(list)
    for answer, question in answered:
        for name, score in question_scores(answer, question).items():
            by_name[name].append(score)
    means = {name: sum(scores) / len(scores) for name, scores in by_name.items()}
    return means | split_scores(answered)


def split_scores(answered: Sequence[tuple[str, Question]]) -> dict[str, float]:
    """Consistency and distribution of pairs of an answer and its question, where they exist."""
    right = {question["example_id"]: answer == question["answer"] for answer, question in answered}
    balanced = [(answer, question) for answer, question in answered if question["is_balanced"]]
    entailed = {question["example_id"]: question["entailed"] for _, question in balanced}
    grouped = [(each["global_group"], each["answer"], answer) for answer, each in balanced if each["global_group"]]
    scores = {"consistency": consistency(right, entailed), "distribution": distribution(grouped)}
    return {name: value for name, value in scores.items() if value is not None}


class GQAScores(ItemScores):
    """Scores of single questions, and consistency and distribution of the split, over batches and processes."""

    def __init__(self, name: str, score: Callable[[Any, Columns], Scored]):
        super().__init__(name, score)
        self._answered: list[tuple[str, Question]] = []

    def update(self, outputs: Any, batch: Batch) -> None:
        super().update(outputs, batch)
        questions = batch["questions"]
        answers = self._items["answer"][-len(questions) :]
        self._answered += [pair for pair in zip(answers, questions, strict=True) if pair[1]["answer"]]

    def state(self) -> Fields:
        """The state of `ItemScores`, and the answers with their questions."""
        return {**super().state(), "answered": self._answered}

    def compute(self, state: Columns) -> Fields:
        """The metrics of `ItemScores`, `{name}_consistency` and `{name}_distribution`."""
        sums = dict(state)
        further = split_scores(sums.pop("answered"))
        return super().compute(sums) | {f"{self.name}_{name}": value for name, value in further.items()}

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""GQA: visual questions with one right answer, which a model chooses from a list as in visual question answering."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grounded_attention.dataset_scripts.builders.gqa import read_attention
from grounded_attention.dataset_scripts.builders.predictions import GQA_NAMES
from grounded_attention.metrics.gqa_scores import GQAScores, gqa_scores, mean_grounding, question_scores
from grounded_attention.metrics.item_scores import Scored
from grounded_attention.pages.failures import Judged

from .answer_lists import FEWEST, Answers, outside, read_answers
from .answering import AnsweringTask, AnswerOptions
from .task import Batch, Examples, Metric, ScoredFile

GROUP = "gqa"
# What the metrics read of a row.
QUESTION = (
    "example_id",
    "text",
    "answer",
    "is_balanced",
    "structural_type",
    "semantic_type",
    "detailed_type",
    "global_group",
    "entailed",
    "valid",
    "plausible",
)
CITATION = """@inproceedings{hudson2019gqa,
  title = {{GQA}: A New Dataset for Real-World Visual Reasoning and Compositional Question Answering},
  author = {Hudson, Drew A. and Manning, Christopher D.},
  booktitle = {Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year = {2019}
}"""


@dataclass(frozen=True)
class GQAOptions(AnswerOptions):
    """Which answers there are, and how their scores start."""

    answers: Answers = field(default_factory=lambda: {FEWEST: 1})


class GQA(AnsweringTask):
    """Questions with one right answer; one has a score if it is balanced."""

    name = "gqa"
    title = "compositional visual question answering"
    builder = "gqa"
    columns = ("image_id", *QUESTION)
    Options = GQAOptions
    citation = CITATION
    predictions = "a list of objects with questionId and prediction, and attention for its grounding score"
    prediction_names = GQA_NAMES

    def metrics(self) -> list[Metric]:
        return [GQAScores(GROUP, self.score)]

    def fit_options(self, splits: Mapping[str, Any]) -> Any:
        """The options with the list of answers itself, and the most frequent answer of the training questions."""
        train = [answer for answer in splits["train"]["answer"] if answer] if "train" in splits else []
        usual = Counter(train).most_common(1)[0][0] if train else None
        # Right is the same text, so that nothing is normalised.
        answers = read_answers(self.options.answers, ([answer] for answer in train), normalise=str)
        return replace(self.options, answers=answers, majority=self.options.majority or usual)

    def remarks(self, splits: Mapping[str, Any]) -> list[str]:
        """How many answers there are, and how many questions of each split have one that is none of them."""
        options = self.options
        lines = [f"answers: {len(options.index)}"]
        for name, rows in splits.items():
            answers = [answer for answer in rows["answer"] if answer]
            if answers:
                lost = outside(answers, options.index)
                lines.append(f"answers, {name}: those to {lost} of {len(answers)} questions are outside the list")
        return lines

    def collate(self, examples: Examples, processor: Any) -> dict[str, Any]:
        """`labels` (B, A) float32 are 1 for the right answer; `questions` are what the metrics read of each row."""
        rows = examples.rows
        return {
            **self.question_inputs(examples, processor),
            "labels": answer_targets((row["answer"] for row in rows), self.options.index),
            "questions": [{**{name: row[name] for name in QUESTION}, "semantic": row.get("semantic")} for row in rows],
        }

    def score(self, outputs: Any, batch: Batch) -> Scored:
        """The scores of each balanced question's best answer, those of the baseline; the answer."""
        options = self.options
        predicted = self.chosen_answers(outputs)
        questions = batch["questions"]
        notes = {"answer": predicted}
        if not any(question["answer"] for question in questions):
            return Scored({}, notes=notes)
        scored = [question_scores(*pair) for pair in zip(predicted, questions, strict=True)]
        names = dict.fromkeys(name for scores in scored for name in scores)
        scores: dict[str, list[float | None]] = {f"{GROUP}_{n}": [scores.get(n) for scores in scored] for n in names}
        scores[f"{GROUP}_upper_bound"] = [
            float(question["answer"] in options.index) if scores else None
            for question, scores in zip(questions, scored, strict=True)
        ]
        if options.majority is not None:
            majority = (question_scores(options.majority, question) for question in questions)
            scores[f"{GROUP}_majority"] = [scores.get("accuracy") for scores in majority]
        lost = outside((question["answer"] for question in questions if question["answer"]), options.index)
        return Scored(scores, {f"{GROUP}_answers_outside_the_list": lost}, notes)

    def example_scores(self, outputs: Any, batch: Batch) -> Sequence[float | None]:
        """Whether the answer to each balanced question is right; None for other questions."""
        answered = zip(self.chosen_answers(outputs), batch["questions"], strict=True)
        return [question_scores(*pair).get("accuracy") for pair in answered]

    def judge_answer(self, row: Mapping[str, Any], answer: str, confidence: float = 0.0) -> Judged:
        named = (("structural type", "structural_type"), ("semantic type", "semantic_type"))
        return Judged(
            row["example_id"],
            row["image_id"],
            "gqa",
            question_scores(answer, row).get("accuracy"),
            confidence,
            row["answer"],
            answer,
            texts=(("question", row["text"]),),
            kinds={name: row[column] for name, column in named if row[column]},
            worth={row["answer"]: 1.0} if row["answer"] else {},
        )

    def score_predictions(self, path: Path, predictions: Mapping[str, str], split: str, rows: Any) -> ScoredFile:
        """Answers to other questions than those of the split are allowed, as in a file about all questions."""
        if not any(rows["answer"]):
            raise ValueError(
                f"the answers of the split {split} are not published; only the evaluation server can score it"
            )
        try:
            numbers = gqa_scores(dict(predictions), rows)
            if attention := read_attention(path):
                numbers["grounding"] = mean_grounding(rows, attention)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        judged = [
            self.judge_answer(row, predictions[row["example_id"]]) for row in rows if row["example_id"] in predictions
        ]
        items = {
            "example_id": [one.example_id for one in judged],
            "image_id": [one.image_id for one in judged],
            "answer": [one.predicted for one in judged],
        }
        named: dict[str, Any] = {f"{GROUP}_{name}": value for name, value in numbers.items()}
        return ScoredFile({**named, f"{GROUP}_count": len(judged)}, judged, items)


def answer_targets(answers: Iterable[str], index: Mapping[str, int]) -> Tensor:
    """(B, A) float32: 1 for the answer of each row; zeros where it is not in the list."""
    listed = list(answers)
    targets = torch.zeros(len(listed), len(index))
    for row, answer in zip(targets, listed, strict=True):
        if answer in index:
            row[index[answer]] = 1.0
    return targets


TASK = GQA()

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""GQA: visual questions with one right answer, which a model chooses from a list as in visual question answering."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.builders.gqa import read_attention
from grounded_attention.dataset_scripts.files.records import GQA_NAMES
from grounded_attention.metrics.gqa_scores import (
    GQAScores,
    gqa_scores,
    mean_grounding,
    question_scores,
    score_answers,
)
from grounded_attention.metrics.item_scores import Scored
from grounded_attention.pages.failures import Judged
from grounded_attention.utils.named_types import Batch, Fields, Row

from .answering import FEWEST, AnsweringTask, AnswerOptions, Answers, outside
from .task import Examples, Metric, ScoredFile

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
    column = "answer"
    normalise = staticmethod(lambda answer: answer)  # right is the same text
    Options = GQAOptions
    citation = CITATION
    predictions = "a list of objects with questionId and prediction, and attention for its grounding score"
    prediction_names = GQA_NAMES

    def metrics(self) -> list[Metric]:
        return [GQAScores(GROUP, self.score)]

    def worth(self, row: Row) -> dict[str, float]:
        if row["answer"]:
            return {row["answer"]: 1.0}
        return {}

    def collate(self, examples: Examples, processor: Any) -> Fields:
        """`questions` are what the metrics read of each row."""
        questions = []
        for row in examples.rows:
            questions.append({**{name: row[name] for name in QUESTION}, "semantic": row.get("semantic")})
        return {**self.question_inputs(examples, processor), "questions": questions}

    def score(self, outputs: Any, batch: Batch) -> Scored:
        """The scores of each balanced question's best answer, those of the baseline; the answer."""
        options = self.options
        predicted = self.chosen_answers(outputs)
        questions = batch["questions"]
        if not any(question["answer"] for question in questions):
            return Scored({}, notes={"answer": predicted})
        scored = score_answers(predicted, questions, GROUP)
        scores = {**scored.scores}
        bound: list[float | None] = []
        for question in questions:
            counted = question["is_balanced"] and question["answer"]
            bound.append(float(question["answer"] in options.index) if counted else None)
        scores[f"{GROUP}_upper_bound"] = bound
        if options.majority is not None:
            majority = (question_scores(options.majority, question) for question in questions)
            scores[f"{GROUP}_majority"] = [scores.get("accuracy") for scores in majority]
        lost = outside((question["answer"] for question in questions if question["answer"]), options.index)
        return Scored(scores, {f"{GROUP}_answers_outside_the_list": lost}, scored.notes)

    def example_scores(self, outputs: Any, batch: Batch) -> Sequence[float | None]:
        """Whether the answer to each balanced question is right; None for other questions."""
        answered = zip(self.chosen_answers(outputs), batch["questions"], strict=True)
        return [question_scores(*pair).get("accuracy") for pair in answered]

    def judge_answer(self, row: Row, answer: str, confidence: float = 0.0) -> Judged:
        named = (("structural type", "structural_type"), ("semantic type", "semantic_type"))
        kinds = {name: row[column] for name, column in named if row[column]}
        accuracy = question_scores(answer, row).get("accuracy")
        return Judged(
            row["example_id"],
            row["image_id"],
            "gqa",
            accuracy,
            confidence,
            row["answer"],
            answer,
            texts=(("question", row["text"]),),
            kinds=kinds,
            worth=self.worth(row),
        )

    def score_predictions(self, path: Path, predictions: Mapping[str, str], split: str, rows: Any) -> ScoredFile:
        """Answers to other questions than those of the split are allowed, as in a file about all questions."""
        if not any(rows["answer"]):
            raise ValueError(
                f"the answers of the split {split} are not published; only the evaluation server can score it"
            )
        try:
            numbers = gqa_scores(dict(predictions), rows)
            attention = read_attention(path)
            if attention:
                numbers["grounding"] = mean_grounding(rows, attention)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        judged = []
        for row in rows:
            if row["example_id"] in predictions:
                judged.append(self.judge_answer(row, predictions[row["example_id"]]))
        items = {
            "example_id": [one.example_id for one in judged],
            "image_id": [one.image_id for one in judged],
            "answer": [one.predicted for one in judged],
        }
        named: Fields = {f"{GROUP}_{name}": value for name, value in numbers.items()}
        return ScoredFile({**named, f"{GROUP}_count": len(judged)}, judged, items)


TASK = GQA()

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Visual question answering (VL-BERT, section 4.2.2): predict one answer of a list at the position of [MASK]."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.files.records import VQA_NAMES
from grounded_attention.metrics.item_scores import ItemScores, Scored
from grounded_attention.metrics.vqa_accuracy import score_answers, score_questions, soft_targets, vqa_accuracy
from grounded_attention.pages.failures import Judged
from grounded_attention.utils.named_types import Batch, Fields, Row

from .answering import FEWEST, AnsweringTask, AnswerOptions, Answers, normalise_vqa, outside
from .task import Examples, Metric, ScoredFile

PUBLIC_FEWEST = 9


@dataclass(frozen=True)
class VQAOptions(AnswerOptions):
    """Options of the task."""

    answers: Answers = field(default_factory=lambda: {FEWEST: PUBLIC_FEWEST})


class VQA(AnsweringTask):
    """Questions with the answers of several people."""

    name = "vqa"
    title = "visual question answering"
    builder = "vqa_v2"
    columns = ("example_id", "image_id", "text", "answers")
    column = "answers"
    Options = VQAOptions
    predictions = "a list of objects with question_id and answer"
    prediction_names = VQA_NAMES

    def metrics(self) -> list[Metric]:
        return [ItemScores("vqa", self.score)]

    def fit_own_rows(self, rows: Any) -> Any:
        """Normalises answers, as those of VQA v2 are and as the list is that is made of them: "Two" is "2"."""
        if isinstance(self.options.answers, Mapping):
            return rows.map(_normalised)
        return rows

    def worth(self, row: Row) -> dict[str, float]:
        return soft_targets(row["answers"])

    def collate(self, examples: Examples, processor: Any) -> Fields:
        return {
            **self.question_inputs(examples, processor),
            "answers": [list(row["answers"]) for row in examples.rows],
            "answer_type": [row.get("answer_type", "") for row in examples.rows],
        }

    def score(self, outputs: Any, batch: Batch) -> Scored:
        """Scores each question: official accuracy and soft target of the best answer, and accuracy of the baseline."""
        options = self.options
        predicted = self.chosen_answers(outputs)
        answers = batch["answers"]
        notes = {"answer": predicted, "answer_type": batch["answer_type"]}
        if not any(answers):
            return Scored({}, notes=notes)
        soft = batch["labels"].gather(1, outputs.logits.argmax(-1)[:, None])[:, 0].tolist()
        official = score_answers(predicted, answers, batch["answer_type"]).scores
        scores = {
            **official,
            "vqa_soft_accuracy": _if_answered(answers, soft),
            "vqa_soft_upper_bound": _if_answered(answers, batch["labels"].amax(-1).tolist()),
        }
        if options.majority is not None:
            scores["vqa_majority"] = [vqa_accuracy(options.majority, humans) if humans else None for humans in answers]
        lost = sum(outside(humans, options.index) for humans in answers)
        return Scored(scores, {"vqa_answers_outside_the_list": lost}, notes)

    def example_scores(self, outputs: Any, batch: Batch) -> Sequence[float | None]:
        """The official accuracy; None without human answers."""
        accuracies = self.score(outputs, batch).scores.get("vqa_accuracy")
        if accuracies is None:
            return [None] * len(batch["answers"])
        return accuracies

    def judge_answer(self, row: Row, answer: str, confidence: float = 0.0) -> Judged:
        worth = self.worth(row)
        given = list(row["answers"])
        counts = sorted(((given.count(human), human) for human in worth), key=lambda pair: -pair[0])
        answers = ", ".join(f"{human} (×{count})" for count, human in counts)
        named = (("answer type", "answer_type"), ("question type", "question_type"))
        kinds = {name: row[column] for name, column in named if row.get(column)}
        return Judged(
            row["example_id"],
            row["image_id"],
            "vqa",
            vqa_accuracy(answer, row["answers"]) if worth else None,
            confidence,
            answers,
            answer,
            texts=(("question", row["text"]),),
            kinds=kinds,
            worth=worth,
        )

    def score_predictions(self, path: Path, predictions: Mapping[str, str], split: str, rows: Any) -> ScoredFile:
        if not any(rows["answers"]):
            raise ValueError(f"the split {split} has no human answers; only the evaluation server can score it")
        score_questions(dict(predictions), dict(zip(rows["example_id"], rows["answers"], strict=True)), str(path))
        judged = [self.judge_answer(row, predictions[row["example_id"]]) for row in rows]
        predicted = [one.predicted for one in judged]
        items = {"example_id": list(rows["example_id"]), "image_id": list(rows["image_id"])}
        metric = ItemScores("vqa", lambda outputs, batch: outputs)
        metric.update(score_answers(predicted, list(rows["answers"]), list(rows["answer_type"])), items)
        return ScoredFile(metric.compute(metric.state()), judged, {**items, "answer": predicted})


def _normalised(row: Row) -> Fields:
    return {"answers": [normalise_vqa(answer) for answer in row["answers"]]}


def _if_answered(answers: list[list[str]], values: list[float]) -> list[float | None]:
    """Replaces the values of questions without human answers by None."""
    return [value if humans else None for value, humans in zip(values, answers, strict=True)]


TASK = VQA()

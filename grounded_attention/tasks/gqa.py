# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""GQA: visual questions with one right answer, which a model chooses from a list as in visual question answering."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grounded_attention.analysis.perturbation_curves import Explained, Scores
from grounded_attention.dataset_scripts.builders.gqa import read_predictions, write_predictions
from grounded_attention.metrics.gqa_scores import GQAScores, gqa_scores, question_scores
from grounded_attention.metrics.item_scores import Scored

from .answer_lists import FEWEST, Answers, outside, read_answers
from .answering import (
    EXAMPLE,
    MODEL_INPUTS,
    AnswerOptions,
    answer_loss,
    answers_of_model,
    answers_of_options,
    chosen_answers,
    different_answers,
    initialise,
    question_inputs,
    read_answer,
)
from .judges import judge_gqa, judge_right_answer
from .task import Batch, Examples, PredictionFile, ScoredFile, Task, identify

GROUP = "gqa"
# What the metrics read of a row.
QUESTION = (
    "example_id",
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


def fit_options(options: GQAOptions, splits: Mapping[str, Any]) -> GQAOptions:
    """The options with the list of answers itself, and the most frequent answer of the training questions."""
    train = [answer for answer in splits["train"]["answer"] if answer] if "train" in splits else []
    usual = Counter(train).most_common(1)[0][0] if train else None
    # Right is the same text, so that nothing is normalised.
    answers = read_answers(options.answers, ([answer] for answer in train), normalise=str)
    return replace(options, answers=answers, majority=options.majority or usual)


def remarks(options: GQAOptions, splits: Mapping[str, Any]) -> list[str]:
    """How many answers there are, and how many questions of each split have one that is none of them."""
    lines = [f"answers: {len(options.index)}"]
    for name, rows in splits.items():
        given = [answer for answer in rows["answer"] if answer]
        if given:
            lost = outside(given, options.index)
            lines.append(f"answers, {name}: those to {lost} of {len(given)} questions are outside the list")
    return lines


def collate(examples: Examples, processor: Any, options: GQAOptions) -> dict[str, Any]:
    """Rows of the GQA builder -> model inputs and targets.

    Beside the model's inputs the batch holds `labels` (B, A) float32, 1 for the right answer, the list `questions`
    (what the metrics read of each row), and the lists `example_id` and `image_id`.
    """
    rows = examples.rows
    return {
        **question_inputs(examples, processor),
        **identify(rows),
        "labels": answer_targets((row["answer"] for row in rows), options.index),
        "questions": [{name: row[name] for name in QUESTION} for row in rows],
    }


def answer_targets(given: Iterable[str], index: Mapping[str, int]) -> Tensor:
    """(B, A) float32: 1 for the answer of each row; zeros where it is not in the list."""
    listed = list(given)
    targets = torch.zeros(len(listed), len(index))
    for row, answer in zip(targets, listed, strict=True):
        if answer in index:
            row[index[answer]] = 1.0
    return targets


def score(outputs: Any, batch: Batch, options: GQAOptions) -> Scored:
    """The scores of each balanced question's best answer, those of the baseline; the answer."""
    predicted, questions = chosen_answers(outputs, options), batch["questions"]
    notes = {"answer": predicted}
    if not any(question["answer"] for question in questions):
        return Scored({}, notes=notes)
    found = [question_scores(*pair) for pair in zip(predicted, questions, strict=True)]
    names = dict.fromkeys(name for scores in found for name in scores)
    scores: dict[str, list[float | None]] = {f"{GROUP}_{n}": [scores.get(n) for scores in found] for n in names}
    scores[f"{GROUP}_upper_bound"] = [
        float(question["answer"] in options.index) if scores else None
        for question, scores in zip(questions, found, strict=True)
    ]
    if options.majority is not None:
        majority = (question_scores(options.majority, question) for question in questions)
        scores[f"{GROUP}_majority"] = [scores.get("accuracy") for scores in majority]
    lost = outside((question["answer"] for question in questions if question["answer"]), options.index)
    return Scored(scores, {f"{GROUP}_answers_outside_the_list": lost}, notes)


def configure(task: Task, options: GQAOptions, config: Any) -> Task:
    """The task with the loss that the model configuration's `vqa_loss` names, and metrics that know the answers."""
    return replace(
        task,
        losses=(answer_loss(config.vqa_loss),),
        metrics=lambda: [GQAScores(GROUP, lambda outputs, batch: score(outputs, batch, options))],
    )


def export(items: Mapping[str, list], path: Path) -> None:
    """The predictions in the official format, `<path>.json`."""
    answers = dict(zip(items["example_id"], items["answer"], strict=True))
    write_predictions(path.with_name(path.name + ".json"), answers)


def score_file(path: Path, answers: dict[str, str], split: str, rows: Any) -> ScoredFile:
    """
    Scores an official file of answers. It may have answers to more questions than the split, as a file about all
    questions has beside the balanced ones.
    """
    if not any(rows["answer"]):
        raise ValueError(
            f"the answers of the split {split} are not published; only the evaluation server can score it"
        )
    try:
        figures = gqa_scores(answers, rows)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    judged = [judge_right_answer(row, answers[row["example_id"]]) for row in rows if row["example_id"] in answers]
    items = {
        "example_id": [one.example_id for one in judged],
        "image_id": [one.image_id for one in judged],
        "answer": [one.predicted for one in judged],
    }
    named: dict[str, Any] = {f"{GROUP}_{name}": value for name, value in figures.items()}
    return ScoredFile({**named, f"{GROUP}_count": len(judged)}, judged, items)


def answer_scores(options: GQAOptions) -> Scores:
    """Whether the answer to each balanced question is right; None for other questions."""

    def scores(outputs: Any, batch: Batch) -> Sequence[float | None]:
        answered = zip(chosen_answers(outputs, options), batch["questions"], strict=True)
        return [question_scores(*pair).get("accuracy") for pair in answered]

    return scores


TASK = Task(
    name="gqa",
    title="compositional visual question answering",
    builder="gqa",
    columns=("image_id", "question", *QUESTION),
    head="vqa",
    model_inputs=MODEL_INPUTS,
    losses=(answer_loss("binary_cross_entropy"),),
    metrics=lambda: [],
    collate=collate,
    options=GQAOptions,
    model_config=answers_of_options,
    fit_options=fit_options,
    remarks=remarks,
    configure=configure,
    initialise=initialise,
    export=export,
    prediction_file=PredictionFile(
        "a list of objects with questionId and prediction",
        read_predictions,
        lambda answers: different_answers(answers.values()),
        score_file,
    ),
    judge=judge_gqa,
    example=EXAMPLE,
    explained=Explained(read_answer, answer_scores),
    hub_task="visual-question-answering",
    citation=CITATION,
    trained_options=answers_of_model,
)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Visual question answering (VL-BERT, section 4.2.2): predict one answer of a list at the position of [MASK]."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grounded_attention.analysis.perturbation_curves import Explained, Scores
from grounded_attention.dataset_scripts.builders.vqa_v2 import read_predictions, write_predictions
from grounded_attention.metrics.item_scores import ItemScores, Scored
from grounded_attention.metrics.vqa_accuracy import VQAAccuracy, score_questions, soft_targets, vqa_accuracy

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
from .judges import judge_answer, judge_vqa
from .task import Batch, Examples, PredictionFile, ScoredFile, Task, identify

PUBLIC_FEWEST = 9


@dataclass(frozen=True)
class VQAOptions(AnswerOptions):
    """Options of the task."""

    answers: Answers = field(default_factory=lambda: {FEWEST: PUBLIC_FEWEST})


def fit_options(options: VQAOptions, splits: Mapping[str, Any]) -> VQAOptions:
    """Replaces `answers` by the list itself, and sets `majority`."""
    train = splits["train"]["answers"] if "train" in splits else []
    counted = Counter(answer for answers in train for answer in answers)
    usual = counted.most_common(1)[0][0] if counted else None
    return replace(options, answers=read_answers(options.answers, train), majority=options.majority or usual)


def remarks(options: VQAOptions, splits: Mapping[str, Any]) -> list[str]:
    """Returns lines with the number of answers, and of human answers in each split that are not in the list."""
    lines = [f"answers: {len(options.index)}"]
    for name, rows in splits.items():
        given = list(rows["answers"])
        total, lost = sum(map(len, given)), sum(outside(answers, options.index) for answers in given)
        if total:
            empty = sum(outside(answers, options.index) == len(answers) for answers in given)
            lines.append(
                f"answers, {name}: {lost} of {total} human answers are outside the list; "
                f"{empty} of {len(given)} questions have none in it"
            )
    return lines


def collate(examples: Examples, processor: Any, options: VQAOptions) -> dict[str, Any]:
    """Makes a batch of rows of the VQA builder."""
    rows = examples.rows
    given = [list(row["answers"]) for row in rows]
    return {
        **question_inputs(examples, processor),
        **identify(rows),
        "labels": answer_targets(given, options.index),
        "answers": given,
        "answer_type": [row.get("answer_type", "") for row in rows],
    }


def answer_targets(given: Iterable[list[str]], index: Mapping[str, int]) -> Tensor:
    """Computes the soft targets (B, A) float32: the accuracy of each answer in the list."""
    listed = list(given)
    targets = torch.zeros(len(listed), len(index))
    for row, answers in zip(targets, listed, strict=True):
        for answer, value in soft_targets(answers).items():
            if answer in index:
                row[index[answer]] = value
    return targets


def score(outputs: Any, batch: Batch, options: VQAOptions) -> Scored:
    """Scores each question: official accuracy and soft target of the best answer, and accuracy of the baseline."""
    predicted, given = chosen_answers(outputs, options), batch["answers"]
    notes = {"answer": predicted, "answer_type": batch["answer_type"]}
    if not any(given):
        return Scored({}, notes=notes)
    soft = batch["labels"].gather(1, outputs.logits.argmax(-1)[:, None])[:, 0].tolist()
    accuracy = [vqa_accuracy(*pair) if pair[1] else None for pair in zip(predicted, given, strict=True)]
    scores = {
        "vqa_accuracy": accuracy,
        "vqa_soft_accuracy": _if_answered(given, soft),
        "vqa_soft_upper_bound": _if_answered(given, batch["labels"].amax(-1).tolist()),
        **{f"vqa_{kind}_accuracy": _of_type(kind, accuracy, batch) for kind in _types(batch)},
    }
    if options.majority is not None:
        scores["vqa_majority"] = [vqa_accuracy(options.majority, humans) if humans else None for humans in given]
    lost = sum(outside(humans, options.index) for humans in given)
    return Scored(scores, {"vqa_answers_outside_the_list": lost}, notes)


def _if_answered(given: list[list[str]], values: list[float]) -> list[float | None]:
    """Replaces the values of questions without human answers by None."""
    return [value if humans else None for value, humans in zip(values, given, strict=True)]


def _types(batch: Batch) -> dict[str, None]:
    return dict.fromkeys(kind.replace("/", "_") for kind in batch["answer_type"] if kind)


def _of_type(kind: str, accuracy: list[float | None], batch: Batch) -> list[float | None]:
    types = [each.replace("/", "_") for each in batch["answer_type"]]
    return [value if found == kind else None for value, found in zip(accuracy, types, strict=True)]


def configure(task: Task, options: VQAOptions, config: Any) -> Task:
    """Sets the loss from `vqa_loss` of the model configuration, and metrics that use the list of answers."""
    return replace(
        task,
        losses=(answer_loss(config.vqa_loss),),
        metrics=lambda: [ItemScores("vqa", lambda outputs, batch: score(outputs, batch, options))],
    )


def export(items: Mapping[str, list], path: Path) -> None:
    """Writes the predictions in the official format to `<path>.json`."""
    write_predictions(
        path.with_name(path.name + ".json"), dict(zip(items["example_id"], items["answer"], strict=True))
    )


def score_file(path: Path, answers: dict[str, str], split: str, rows: Any) -> ScoredFile:
    """
    Scores an official file of answers.
    """
    if not any(rows["answers"]):
        raise ValueError(f"the split {split} has no human answers; only the evaluation server can score it")
    score_questions(answers, dict(zip(rows["example_id"], rows["answers"], strict=True)), str(path))
    judged = [judge_answer(row, answers[row["example_id"]]) for row in rows]
    kinds = (
        {"answer_types": [kind.replace("/", "_") for kind in rows["answer_type"]]} if any(rows["answer_type"]) else {}
    )
    predicted = [one.predicted for one in judged]
    figures = VQAAccuracy().compute(predictions=predicted, references=list(rows["answers"]), **kinds)
    named = {
        f"vqa_{k.removeprefix('vqa_accuracy_')}_accuracy" if k != "vqa_accuracy" else k: v for k, v in figures.items()
    }
    items = {"example_id": list(rows["example_id"]), "image_id": list(rows["image_id"]), "answer": predicted}
    return ScoredFile({**named, "vqa_count": len(judged)}, judged, items)


def answer_scores(options: VQAOptions) -> Scores:
    """Returns a function that scores each example: the official accuracy, or None without human answers."""

    def scores(outputs: Any, batch: Batch) -> Sequence[float | None]:
        found = score(outputs, batch, options).scores.get("vqa_accuracy")
        return [None] * len(batch["answers"]) if found is None else found

    return scores


TASK = Task(
    name="vqa",
    title="visual question answering",
    builder="vqa_v2",
    columns=("example_id", "image_id", "question", "answers"),
    head="vqa",
    model_inputs=MODEL_INPUTS,
    losses=(answer_loss("binary_cross_entropy"),),
    metrics=lambda: [],
    collate=collate,
    options=VQAOptions,
    model_config=answers_of_options,
    fit_options=fit_options,
    remarks=remarks,
    configure=configure,
    initialise=initialise,
    export=export,
    prediction_file=PredictionFile(
        "a list of objects with question_id and answer",
        read_predictions,
        lambda answers: different_answers(answers.values()),
        score_file,
    ),
    judge=judge_vqa,
    example=EXAMPLE,
    explained=Explained(read_answer, answer_scores),
    hub_task="visual-question-answering",
    trained_options=answers_of_model,
)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Shared by the tasks in which a model chooses an answer of a list: options, inputs, loss, start."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from grounded_attention.analysis.relevancy import ReadOut
from grounded_attention.modeling.task_losses import answer_sum
from grounded_attention.utils.schema import Section

from .answer_lists import Answers
from .task import TEXT_AND_REGIONS, Batch, Examples, LossComponent, seen_arguments

MODEL_INPUTS = (*TEXT_AND_REGIONS, "answer_positions")
# Code for model cards, see `Task.example`.
EXAMPLE = """inputs = processor(caption, layout=processor.answer_layout, **seen)
with torch.no_grad():
    best = model(**inputs).logits[0].argmax().item()
print(f"answer: {{model.config.id2label[best]}}")"""


@dataclass(frozen=True)
class AnswerOptions(Section):
    """Options of such a task."""

    answers: Answers
    initialise_answers: bool = False
    majority: str | None = None

    @cached_property
    def index(self) -> dict[str, int]:
        """Answer -> its class."""
        if not isinstance(self.answers, list):
            raise ValueError(f"answers is {self.answers!r}: the list has not been read yet, call fit_options first")
        return {answer: number for number, answer in enumerate(self.answers)}


def question_inputs(examples: Examples, processor: Any) -> dict[str, Any]:
    """Makes the model inputs of rows with a `question`."""
    return processor(
        text=[row["question"] for row in examples.rows],
        layout=processor.answer_layout,
        return_tensors="pt",
        **seen_arguments(examples.images, examples.regions),
    )


def answer_loss(form: str) -> LossComponent:
    """Makes a loss over questions from `config.vqa_loss`; "cross_entropy" counts only questions with a target."""

    def count(batch: Batch) -> Tensor:
        return (batch["labels"].sum(-1) > 0).sum() if form == "cross_entropy" else torch.tensor(len(batch["labels"]))

    return LossComponent("answers", lambda outputs, batch: answer_sum(outputs.logits, batch["labels"], form)[0], count)


def chosen_answers(outputs: Any, options: AnswerOptions) -> list[str]:
    """The answer with the highest score of each row."""
    known = list(options.index)
    return [known[number] for number in outputs.logits.argmax(-1).tolist()]


def initialise(model: Any, processor: Any, options: AnswerOptions) -> None:
    """Initialises the classifier with embeddings of the words of answers, if `initialise_answers` is True."""
    if options.initialise_answers and not hasattr(model, "init_classifier_from_answers"):
        raise ValueError(
            f"{type(model).__name__} does not support options.initialise_answers, only VL-BERT does: set it to false"
        )
    if options.initialise_answers:
        model.init_classifier_from_answers(processor.tokenizer)


def read_answer(outputs: Any, inputs: Batch) -> ReadOut:
    """The score of the chosen answer and the position that it is read from: [MASK], or [CLS] for a pooled state."""
    scores = outputs.logits.max(-1).values
    return ReadOut(scores, inputs.get("answer_positions", torch.zeros(len(scores), dtype=torch.long)))


def answers_of_options(options: AnswerOptions) -> dict[str, Any]:
    """The configuration fields of a model with these answers."""
    return {"answers": list(options.index)}


def answers_of_model(config: Any, grounded: bool) -> dict[str, Any]:
    """The options with which a trained model is evaluated."""
    return {"answers": list(config.answers)}


def different_answers(predictions: Iterable[str]) -> dict[str, Any]:
    """The options with which a file of answers is scored."""
    return {"answers": sorted(set(predictions))}

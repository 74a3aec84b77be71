# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What tasks share in which a model chooses an answer of a list: options, inputs, loss, start."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from grounded_attention.analysis.relevancy import ReadOut
from grounded_attention.modeling.task_losses import answer_sum

from .answer_lists import check_answers
from .task import TEXT_AND_REGIONS, Batch, Examples, LossComponent, seen_arguments

MODEL_INPUTS = (*TEXT_AND_REGIONS, "answer_positions")
# What a card does with the model: see `Task.example`.
EXAMPLE = """inputs = processor(caption, layout=processor.answer_layout, **seen)
with torch.no_grad():
    best = model(**inputs).logits[0].argmax().item()
print(f"answer: {{model.config.id2label[best]}}")"""


@dataclass(frozen=True)
class AnswerOptions:
    """Which answers there are, and how their scores start.

    Args:
        answers: a path of a JSON list, a list, or `{"fewest": n}`.
        initialise_answers: start the classifier's row of each answer as the mean of its words' embeddings (VL-BERT
            public code).
        majority: an answer that is judged beside the model's, as a baseline; the most frequent answer of the training
            questions when not given.

    Raises:
        ValueError: something that is no list of answers.
    """

    answers: Any
    initialise_answers: bool = False
    majority: str | None = None

    def __post_init__(self) -> None:
        check_answers(self.answers)

    @cached_property
    def index(self) -> dict[str, int]:
        """Answer -> its class, once the list is known."""
        if not isinstance(self.answers, list):
            raise ValueError(f"answers is {self.answers!r}: the list has not been read yet, see fit_options")
        return {answer: number for number, answer in enumerate(self.answers)}


def question_inputs(examples: Examples, processor: Any) -> dict[str, Any]:
    """The model's inputs for rows with a `question`."""
    return processor(
        text=[row["question"] for row in examples.rows],
        layout=processor.answer_layout,
        return_tensors="pt",
        **seen_arguments(examples.images, examples.regions),
    )


def answer_loss(form: str) -> LossComponent:
    """The loss that `config.vqa_loss` names, over the questions; for "cross_entropy" over those with a target."""

    def count(batch: Batch) -> Tensor:
        return (batch["labels"].sum(-1) > 0).sum() if form == "cross_entropy" else torch.tensor(len(batch["labels"]))

    return LossComponent("answers", lambda outputs, batch: answer_sum(outputs.logits, batch["labels"], form)[0], count)


def chosen_answers(outputs: Any, options: AnswerOptions) -> list[str]:
    """The answer with the highest score of each row."""
    known = list(options.index)
    return [known[number] for number in outputs.logits.argmax(-1).tolist()]


def initialise(model: Any, processor: Any, options: AnswerOptions) -> None:
    """Starts the classifier from the answers' words, where the options ask for it.

    Raises:
        ValueError: a model whose classifier cannot start so.
    """
    if options.initialise_answers and not hasattr(model, "init_classifier_from_answers"):
        raise ValueError(f"options.initialise_answers is of VL-BERT; {type(model).__name__} has no such start")
    if options.initialise_answers:
        model.init_classifier_from_answers(processor.tokenizer)


def read_answer(outputs: Any, inputs: Batch) -> ReadOut:
    """The answer that was chosen; it is read from [MASK]."""
    return ReadOut(outputs.logits.max(-1).values, inputs["answer_positions"])


def answers_of_options(options: AnswerOptions) -> dict[str, Any]:
    """The configuration fields of a model with these answers."""
    return {"answers": list(options.index)}


def answers_of_model(config: Any, grounded: bool) -> dict[str, Any]:
    """The options with which a trained model is evaluated."""
    return {"answers": list(config.answers)}


def different_answers(predictions: Iterable[str]) -> dict[str, Any]:
    """The options with which a file of answers is scored."""
    return {"answers": sorted(set(predictions))}

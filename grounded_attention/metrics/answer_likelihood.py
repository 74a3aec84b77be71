# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How well a language model predicts gold answers: loss, perplexity and accuracy of their tokens."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from grounded_attention.modeling.task_losses import cross_entropy_sum
from grounded_attention.utils.named_types import Batch, Fields

from .item_scores import StreamingMetric


def answer_tokens(outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Returns the scores and the labels of the tokens to learn."""
    labels = batch["labels"][:, 1:]
    learned = labels >= 0
    return outputs.logits[:, :-1][learned], labels[learned]


def one_example(outputs: Any, batch: Batch, number: int) -> tuple[Any, dict[str, Tensor]]:
    """Returns outputs and batch of one example of a batch, for [`answer_tokens`]."""
    place = slice(number, number + 1)
    return SimpleNamespace(logits=outputs.logits[place]), {"labels": batch["labels"][place]}


class AnswerLikelihood(StreamingMetric):
    """Streaming metric of gold answers, each token counted once: `answer_loss` (mean negative log-likelihood),
    `answer_perplexity` (its exponential), `answer_token_accuracy` and `answer_tokens`."""

    def update(self, outputs: Any, batch: Batch) -> None:
        """Counts one batch."""
        logits, labels = answer_tokens(outputs, batch)
        loss = cross_entropy_sum(logits, labels)[0]
        right = (logits.argmax(-1) == labels).sum()
        self._add(loss=loss.cpu(), right=right.cpu(), tokens=len(labels))

    def compute(self, state: Mapping[str, Tensor]) -> Fields:
        """The metrics of a state; empty if no answer is known."""
        if not state or not state["tokens"]:
            return {}
        loss = state["loss"] / state["tokens"]
        return {
            "answer_loss": loss.item(),
            "answer_perplexity": loss.exp().item(),
            "answer_token_accuracy": (state["right"] / state["tokens"]).item(),
            "answer_tokens": int(state["tokens"]),
        }

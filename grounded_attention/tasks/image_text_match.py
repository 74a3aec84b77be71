# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Whether a text describes an image, by the head with which a region model was pre-trained; it is measured alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge

from grounded_attention.metrics.item_scores import ItemScores, Scored
from grounded_attention.pages.failures import Judged
from grounded_attention.utils.named_types import Batch, Fields
from grounded_attention.utils.schema import Section

from .judges import JudgeContext, Rows
from .masked_task import RELATIONSHIP, MaskedTask
from .task import Examples, LossComponent, Metric, seen_arguments, text_inputs


@dataclass(frozen=True)
class ImageTextMatchOptions(Section):
    """Options of the task."""

    max_text_length: Annotated[int, Ge(3)] | None = 128


class ImageTextMatch(MaskedTask):
    """The probability that a text is of its image; nothing is masked."""

    name = "image_text_match"
    title = "image-text match"
    columns = ("example_id", "image_id", "text")
    Options = ImageTextMatchOptions

    @property
    def losses(self) -> tuple[LossComponent, ...]:
        return (RELATIONSHIP,)

    def metrics(self) -> list[Metric]:
        return [ItemScores("match", lambda outputs, batch: Scored({"match_probability": probabilities(outputs)}))]

    def check_config(self) -> None:
        if not self.config.relationship_head:
            raise ValueError("the model has no head for the match of text and image (config.relationship_head)")

    def collate(self, examples: Examples, processor: Any) -> Fields:
        if examples.training:
            raise ValueError("image_text_match is measured alone: the pre-training tasks train the match")
        visual = seen_arguments(examples.images, examples.regions)
        return text_inputs(examples.rows, processor, max_length=self.options.max_text_length, **visual)

    def judge(self, outputs: Any, batch: Batch, rows: Rows, context: JudgeContext) -> Iterator[Judged]:
        """No predictions: what is right depends on the other texts of an image."""
        return iter(())


def probabilities(outputs: Any) -> list[float]:
    """The probability of class 1, which is the caption of this image, of each example."""
    return outputs.relationship_logits.float().softmax(-1)[:, 1].tolist()


TASK = ImageTextMatch()

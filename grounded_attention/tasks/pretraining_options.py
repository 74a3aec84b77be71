# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The options of the task pretraining."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from grounded_attention.modeling.plain_answers import plain_answer
from grounded_attention.utils.schema import Count, Index, Section, Share, Weight

from .answer_lists import Answers
from .masking import REGION_PROBABILITY, WORD_PROBABILITY, CoMasking


@dataclass(frozen=True)
class PretrainingOptions(Section):
    """Options of the task. The defaults are those of the paper."""

    words: bool = True
    regions: bool | None = True
    relationship: bool = True
    region_targets: Literal["hard", "soft"] = "hard"
    background: bool = True
    word_probability: Share = WORD_PROBABILITY
    region_probability: Share = REGION_PROBABILITY
    regions_kept: Share = 0.0
    max_sequence_length: Count | None = None
    texts_per_image: Index = 1
    flip_probability: Share = 0.0
    regions_exchanged: Share = 0.0
    co_masking: CoMasking = "none"
    answers: Answers | None = None
    answers_from: Share = 0.0
    relationship_weight: Weight = 1.0

    def __post_init__(self) -> None:
        if not (self.words or self.regions is not False or self.relationship or self.answers is not None):
            raise ValueError("nothing to predict: switch on words, regions or relationship")
        if self.regions_kept + self.regions_exchanged > 1:
            raise ValueError(
                f"regions_kept is {self.regions_kept} and regions_exchanged is {self.regions_exchanged}, expected a "
                "sum of at most 1"
            )

    @cached_property
    def answer_index(self) -> dict[str, int]:
        """Answer, as [`plain_answer`] writes it -> its class."""
        if not isinstance(self.answers, list):
            raise ValueError(f"answers is {self.answers!r}: the list has not been read yet, call fit_options first")
        index: dict[str, int] = {}
        for number, answer in enumerate(self.answers):
            index.setdefault(plain_answer(answer), number)
        return index

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The options of the task pretraining."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grounded_attention.modeling.plain_answers import plain_answer

from .answer_lists import check_answers
from .masking import CO_MASKING, REGION_PROBABILITY, WORD_PROBABILITY

TARGETS = ("hard", "soft")
SHARES = (
    "word_probability",
    "region_probability",
    "regions_kept",
    "regions_exchanged",
    "flip_probability",
    "answers_from",
)


def check_weight(name: str, weight: float, used: bool) -> None:
    """Raises a ValueError if the weight of a loss is not a finite number of at least 0, or has no effect."""
    if not 0 <= weight < float("inf"):
        raise ValueError(f"{name} is {weight}, expected a finite number of at least 0")
    if weight != 1 and not used:
        raise ValueError(f"{name} is {weight}, but there is no such loss: remove it")


@dataclass(frozen=True)
class PretrainingOptions:
    """Options of the task. The defaults are those of the paper."""

    words: bool = True
    regions: bool | None = True
    relationship: bool = True
    region_targets: str = "hard"
    background: bool = True
    word_probability: float = WORD_PROBABILITY
    region_probability: float = REGION_PROBABILITY
    regions_kept: float = 0.0
    max_sequence_length: int | None = None
    texts_per_image: int = 1
    flip_probability: float = 0.0
    regions_exchanged: float = 0.0
    co_masking: str = "none"
    answers: Any = None
    answers_from: float = 0.0
    relationship_weight: float = 1.0

    def __post_init__(self) -> None:
        if not (self.words or self.regions is not False or self.relationship or self.answers is not None):
            raise ValueError("nothing to predict: switch on words, regions or relationship")
        if self.region_targets not in TARGETS:
            raise ValueError(f"region_targets is {self.region_targets!r}, expected one of {', '.join(TARGETS)}")
        for name in SHARES:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected a share in [0, 1]")
        if self.regions_kept + self.regions_exchanged > 1:
            raise ValueError(
                f"regions_kept is {self.regions_kept} and regions_exchanged is {self.regions_exchanged}, expected a "
                "sum of at most 1"
            )
        if self.co_masking not in CO_MASKING:
            raise ValueError(f"co_masking is {self.co_masking!r}, expected one of {', '.join(CO_MASKING)}")
        if self.co_masking != "none" and self.regions is False:
            raise ValueError(f"co_masking is {self.co_masking!r}, but regions is false: no region is masked")
        check_weight("relationship_weight", self.relationship_weight, self.relationship)
        if self.answers is not None:
            check_answers(self.answers)
        elif self.answers_from:
            raise ValueError(f"answers_from is {self.answers_from}, but answers is empty: give answers, or remove it")
        if self.texts_per_image < 0:
            raise ValueError(f"texts_per_image is {self.texts_per_image}, expected 0 or more")

    @cached_property
    def answer_index(self) -> dict[str, int]:
        """Answer, as [`plain_answer`] writes it -> its class."""
        if not isinstance(self.answers, list):
            raise ValueError(f"answers is {self.answers!r}: the list has not been read yet, call fit_options first")
        index: dict[str, int] = {}
        for number, answer in enumerate(self.answers):
            index.setdefault(plain_answer(answer), number)
        return index

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
    """Options of the task. The defaults are those of the paper.

    Args:
        words (`bool`, *optional*, defaults to `True`): predict masked words.
        regions (`bool`, *optional*, defaults to `True`): predict the detector class of masked regions; None to do so
            only if the model family supports it. Without regions in the data there is no such loss.
        relationship (`bool`, *optional*, defaults to `True`): give half of the images a caption of another image, and
            predict the caption match (1: the caption belongs to the image).
        region_targets (`str`, *optional*, defaults to `"hard"`): `"hard"`, the most likely class of the detector, or
            `"soft"`, its probabilities of all classes (public code).
        background (`bool`, *optional*, defaults to `True`): region class 0 of the model is the background, as in the
            1,601 classes of the Visual Genome detector. Then class k of a region table, which has no background, is
            class k + 1 of the model. Only for hard targets; the columns of probabilities are not changed.
        word_probability (`float`, *optional*, defaults to `0.15`): probability that a word is predicted.
        region_probability (`float`, *optional*, defaults to `0.15`): probability that a region is predicted.
        regions_kept (`float`, *optional*, defaults to `0.0`): share of the predicted regions that stay visible; 0.1 in
            the public code.
        regions_exchanged (`float`, *optional*, defaults to `0.0`): share of the predicted regions that get the feature
            of a random region of another image; 0.1 in the public code of LXMERT. Targets are those of the region
            itself. Only for region features.
        co_masking (`str`, *optional*, defaults to `"none"`): what happens to regions that overlap others (IoU above
            0.4): `"none"`, `"paper"`: those that overlap a hidden region are hidden too, and not predicted (12-in-1
            paper), or `"released"`, the fault of the public code of 12-in-1: they stay visible, and the sum of the
            visible features is divided by the number of regions that overlap no predicted one, so the feature of the
            whole image is too large.
        max_sequence_length (`int`, *optional*): maximum number of text tokens (with [CLS] and [SEP]) plus regions
            (with the whole image) in an example. If there are more, the longer of the two is cut: the end of the text,
            or the regions with the lowest scores (64 in the public code).
        texts_per_image (`int`, *optional*, defaults to 1): rows of text without image for each image, if there is a
            text corpus.
        flip_probability (`float`, *optional*, defaults to `0.0`): probability that a picture is flipped in training,
            with its boxes, and with "left" and "right" exchanged in its caption (0.5 in the public code, which does
            not change the words). Only for models that read pixels.
        relationship_weight (`float`, *optional*, defaults to `1.0`): factor of the loss of the caption match, the
            lambda_align of Chou et al. (2022).
        answers (`str`, `list[str]` or `dict[str, int]`, *optional*): the answers to questions among the texts: the
            path of a JSON list, a list, or `{"fewest": n}`: the best answers to at least n training questions. Needs
            rows with `answers` and a family that predicts them (LXMERT). An exchanged question has no label. By
            default no answers are predicted.
        answers_from (`float`, *optional*, defaults to `0.0`): share of the training's steps before which answers are
            not part of the loss: 0 in the public code of LXMERT, 0.5 in its paper (section 3.3).

    Raises:
        ValueError: if there is nothing to predict, or a value is outside its range.
    """

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
        """Answer, as [`plain_answer`] writes it -> its class.

        Raises:
            ValueError: if the list has not been read yet.
        """
        if not isinstance(self.answers, list):
            raise ValueError(f"answers is {self.answers!r}: the list has not been read yet, call fit_options first")
        index: dict[str, int] = {}
        for number, answer in enumerate(self.answers):
            index.setdefault(plain_answer(answer), number)
        return index

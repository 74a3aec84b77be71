# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What is drawn about one image, which the writers put into files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grounded_attention.utils.named_types import Fields

from . import compositional_questions, questions
from .captions import Caption, Entity
from .features import Detections
from .world import Combinations, Scene

CHAINS_PER_IMAGE = 16


@dataclass(frozen=True)
class SceneRecord:
    """One image of the data set: its number and id, its scene, its captions.

    `unrelated` is the index of a caption that was written for another image, if there is one. `combinations` are those
    that the scene and all texts about it may have.
    """

    number: int
    image_id: str
    scene: Scene
    captions: tuple[Caption, ...]
    unrelated: int | None = None
    combinations: Combinations = Combinations.ALL

    @property
    def related_captions(self) -> list[Caption]:
        """The captions that were written for this image."""
        return [caption for index, caption in enumerate(self.captions) if index != self.unrelated]

    def chains(self, foreign: bool = False) -> dict[Entity, int]:
        """Returns the chain id, unique in the data set, of every entity in the related captions, or in the `foreign`
        one, whose entities refer to nothing in this image.
        """
        entities = dict[Entity, None]()
        for index, caption in enumerate(self.captions):
            if (index == self.unrelated) == foreign:
                entities |= dict.fromkeys(mention.entity for mention in caption.mentions if mention.entity)
        first = 1 + CHAINS_PER_IMAGE * self.number
        numbers = range(first, first + CHAINS_PER_IMAGE)
        if foreign:
            numbers = numbers[::-1]
        return dict(zip(entities, numbers, strict=False))


@dataclass(frozen=True, kw_only=True)
class DrawnImage(SceneRecord):
    """One image with all texts about it, the boxes of its objects in pixels, and what a detector finds.

    `expressions` are those of each object; `composed` are questions in the manner of GQA, which entail `entailed`;
    `pairs` are rows of phrase pairs, `parses` the text of a file, and `sentences` are about a scene without an image.
    """

    boxes: tuple[tuple[float, ...], ...]
    detections: Detections
    expressions: list[list[str]]
    questions: list[questions.Question]
    composed: list[compositional_questions.Question]
    entailed: list[compositional_questions.Question]
    pairs: list[tuple[str, ...]]
    parses: str
    sentences: list[str]


Splits = Mapping[str, Sequence[DrawnImage]]  # the images of train, val and test
Files = Fields  # path -> text, bytes, or what JSON holds

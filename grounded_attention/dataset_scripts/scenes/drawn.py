# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What is drawn about one image, which the writers put into files."""

from dataclasses import dataclass

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

    def chains(self) -> dict[Entity, int]:
        """Returns the chain id, unique in the data set, of every entity in the related captions."""
        mentioned = (mention.entity for caption in self.related_captions for mention in caption.mentions)
        entities = dict.fromkeys(entity for entity in mentioned if entity)
        return {entity: self._chain(place) for place, entity in enumerate(entities)}

    def foreign_chains(self) -> dict[Entity, int]:
        """Returns chain ids for the entities of the unrelated caption; they refer to nothing in this image."""
        if self.unrelated is None:
            return {}
        mentioned = (mention.entity for mention in self.captions[self.unrelated].mentions)
        entities = dict.fromkeys(entity for entity in mentioned if entity)
        return {entity: self._chain(CHAINS_PER_IMAGE - 1 - place) for place, entity in enumerate(entities)}

    def _chain(self, place: int) -> int:
        return 1 + CHAINS_PER_IMAGE * self.number + place


@dataclass(frozen=True)
class DrawnImage:
    """One image with all texts about it, the boxes of its objects in pixels, and what a detector finds.

    `expressions` are those of each object; `composed` are questions in the manner of GQA, which entail `entailed`;
    `pairs` are rows of phrase pairs, `parses` the text of a file, and `sentences` are about a scene without an image.
    """

    record: SceneRecord
    boxes: tuple[tuple[float, ...], ...]
    detections: Detections
    expressions: list[list[str]]
    questions: list[questions.Question]
    composed: list[compositional_questions.Question]
    entailed: list[compositional_questions.Question]
    pairs: list[tuple[str, ...]]
    parses: str
    sentences: list[str]

    @property
    def image_id(self) -> str:
        """The id of the image."""
        return self.record.image_id

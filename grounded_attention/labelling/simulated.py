# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A simulated grounder, for studies of label noise: annotated boxes, a known share of them wrong."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou

from .grounder import Candidates, Example

# A box that overlaps a gold box this much would match the same regions, so it would not be wrong.


class SimulatedGrounder:
    """The annotated boxes, or, for a share of the phrases, the box of another object; drawn by seed and caption."""

    reads_images = False

    def __init__(self, wrong: float = 0.0, seed: int = 0) -> None:
        self.wrong = wrong
        self.seed = seed
        self.provenance: dict[str, Any] = {"kind": "scenes", "wrong": wrong, "seed": seed}

    def ground(self, examples: Sequence[Example]) -> list[list[Candidates]]:
        return [self._ground(example) for example in examples]

    def _ground(self, example: Example) -> list[Candidates]:
        if example.objects is None or any(phrase.boxes is None for phrase in example.phrases):
            raise ValueError("the simulated grounder needs annotated boxes: give --phrases given")
        rng = np.random.default_rng((self.seed, zlib.crc32(example.caption_id.encode())))
        size = np.array([example.width, example.height] * 2, dtype=np.float32)
        objects = np.asarray(example.objects, dtype=np.float32).reshape(-1, 4)
        candidates = []
        for phrase in example.phrases:
            # Every phrase takes the same number of draws, so that one phrase does not change the draws of the next.
            chance, place, score = rng.random(3)
            boxes = np.asarray(phrase.boxes, dtype=np.float32).reshape(-1, 4)
            others = objects[(box_iou(objects, boxes) < IOU_THRESHOLD).all(axis=1)]
            if chance < self.wrong and len(others):
                boxes = others[int(place * len(others))][None]
            candidates.append(Candidates(boxes * size, np.full(len(boxes), 0.5 + score / 2, dtype=np.float32)))
        return candidates

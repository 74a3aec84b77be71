# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One of our own models as a grounder (self-training): the regions to which a phrase attends."""

from collections.abc import Sequence

import numpy as np

from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.modeling.pipeline_visual_grounding import VisualGroundingPipeline
from grounded_attention.processing.region_detection import model_provenance
from grounded_attention.utils.named_types import Batch, Columns, Fields

from .grounder import Candidates, Example

EDGES = ("xmin", "ymin", "xmax", "ymax")


class AttentionGrounder:
    """The pipeline `visual-grounding` as a grounder; a score is a region's share of the phrase's attention."""

    def __init__(
        self,
        pipe: VisualGroundingPipeline,
        name: str,
        regions: RegionTable,
        layer: int | None = None,
        head: int | None = None,
    ) -> None:
        self.pipe = pipe
        self.regions = regions
        self.reads_images = pipe.reads_pixels
        self._settings: Fields = {"layer": layer, "head": head, "top_k": None}
        self.provenance: Fields = {
            "kind": "attention",
            **model_provenance(pipe.model, name),
            "layer": layer,
            "head": head,
            "regions": regions.info["checksum"],
        }

    def ground(self, examples: Sequence[Example]) -> list[list[Candidates]]:
        inputs = [self._input(example) for example in examples]
        answers = self.pipe(inputs, batch_size=len(inputs), **self._settings)
        return [
            _by_phrase(example, regions, each)
            for example, regions, each in zip(examples, inputs, answers, strict=True)
        ]

    def _input(self, example: Example) -> Fields:
        spans = [(phrase.start, phrase.end) for phrase in example.phrases]
        known = {"caption": example.text, "phrases": spans, "regions": self.regions[example.image_id]}
        return known if example.image is None else {**known, "image": example.image}


def _by_phrase(example: Example, inputs: Batch, pointed: Sequence[Columns]) -> list[Candidates]:
    """Groups the pipeline's list by phrase; the pipeline sorts phrases by their spans."""
    spans: dict[tuple[int, int], list[Columns]] = {}
    for one in pointed:
        spans.setdefault((one["start"], one["end"]), []).append(one)
    # The pipeline uses the size of the table's record, which may be that of a smaller copy of the image.
    record = inputs["regions"]
    scale = np.array([example.width / record.width, example.height / record.height] * 2, dtype=np.float32)
    made = []
    for phrase in example.phrases:
        regions = spans[phrase.start, phrase.end]
        # Equal spans are listed twice; each region counts once.
        unique = {one["region"]: one for one in regions}.values()
        boxes = np.array([[one["box"][edge] for edge in EDGES] for one in unique], dtype=np.float32)
        scores = np.array([one["score"] for one in unique], dtype=np.float32)
        made.append(Candidates(boxes.reshape(-1, 4) * scale, scores.clip(0, 1)))
    return made

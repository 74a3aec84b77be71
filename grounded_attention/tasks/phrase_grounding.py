# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Phrase grounding (Flickr30K Entities; VisualBERT, appendix B.4): predict the region of each phrase in a caption."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from grounded_attention.metrics.phrase_recall import PROTOCOLS, PhraseRecall, first_hit, rank_boxes
from grounded_attention.modeling.task_losses import grounding_divergence_sum
from grounded_attention.pages.failures import Judged
from grounded_attention.pages.overlay import GOLD, PREDICTED, Box
from grounded_attention.utils.named_types import Batch, Fields
from grounded_attention.utils.schema import Of, Section

from .caption_rows import to_rows
from .judges import NO_BOX, JudgeContext, Rows
from .task import TEXT_AND_REGIONS, Examples, LossComponent, Metric, Task, identify, region_arguments


@dataclass(frozen=True)
class PhraseGroundingOptions(Section):
    """Options of the task."""

    protocol: Annotated[str, Of(PROTOCOLS)] = "proposal"
    max_text_length: Annotated[int, Ge(3)] | None = 128


class PhraseGrounding(Task):
    """A choice among the regions for each phrase; it is right if its IoU with a gold box is at least 0.5."""

    name = "phrase_grounding"
    title = "phrase grounding"
    builder = "flickr30k_entities"
    columns = ("example_id", "image_id", "text", "phrases")
    head = "phrase_grounding"
    model_inputs = (*TEXT_AND_REGIONS, "phrase_mask")
    Options = PhraseGroundingOptions
    needs_regions = True
    example = """inputs = processor(caption, phrases=[{{"text": phrase}}], **seen)
with torch.no_grad():
    scores = model(**inputs).logits[0, 0][inputs["region_candidate_mask"][0]]
print(f"{{phrase}}: box {{boxes[scores.argmax()]}}")"""

    @property
    def losses(self) -> tuple[LossComponent, ...]:
        # The sum is divided by the number of captions, not of phrases, as in the public code.
        return (LossComponent("grounding", grounding_loss, lambda batch: torch.tensor(len(batch["input_ids"]))),)

    def metrics(self) -> list[Metric]:
        return [PhraseRecall(self.options.protocol)]

    def to_rows(self, split: Any, grounded: bool = False) -> Any:
        """One row a caption that has phrases with boxes."""
        if not {"captions", "phrases"} <= set(split.column_names):
            raise ValueError(
                f"the rows have the columns {', '.join(split.column_names)}; phrase grounding needs captions and "
                "phrases: use the builder flickr30k_entities"
            )
        return to_rows(split, grounded=True, bare=False).rename_column("caption_id", "example_id")

    def collate(self, examples: Examples, processor: Any) -> Fields:
        rows = examples.rows
        regions = examples.regions
        if regions is None:
            raise ValueError("phrase grounding needs regions: set data.regions to a region table")
        inputs = processor(
            text=[row["text"] for row in rows],
            phrases=[row["phrases"] for row in rows],
            max_length=self.options.max_text_length,
            return_tensors="pt",
            **region_arguments(regions),
        )
        gold = [
            [(np.asarray(p["boxes"], dtype=np.float32), tuple(p.get("types") or ())) for p in row["phrases"]]
            for row in rows
        ]
        return {**inputs.reported(), **identify(rows), "gold": gold}

    def judge(self, outputs: Any, batch: Batch, rows: Rows, context: JudgeContext) -> Iterator[Judged]:
        for number, row in enumerate(rows):
            for place, phrase in enumerate(row["phrases"]):
                ranked = rank_boxes(outputs, batch, number, place)
                best = [Box(PREDICTED, tuple(box), "predicted") for box in ranked[:1].tolist()]
                rank = first_hit(ranked, phrase["boxes"])
                confidence = outputs.logits[number, place].float().softmax(-1).max().item() if best else 0.0
                yield Judged(
                    f"{row['example_id']}:{place}",
                    row["image_id"],
                    "phrases",
                    float(rank == 1),
                    confidence,
                    phrase["text"],
                    f"found at rank {rank}" if rank else NO_BOX,
                    texts=(("phrase", phrase["text"]), ("caption", row["text"])),
                    kinds={"type": phrase["types"][0]} if phrase.get("types") else {},
                    boxes=(*(Box(GOLD, tuple(box), "gold") for box in phrase["boxes"]), *best),
                )


def grounding_loss(outputs: Any, batch: Batch) -> Tensor:
    """Sums over phrases the divergence from the uniform distribution over regions of the phrase (public code).

    A phrase without gold regions adds 0.
    """
    return grounding_divergence_sum(outputs.logits, batch["phrase_regions"])[0]


TASK = PhraseGrounding()

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Phrase grounding (Flickr30K Entities; VisualBERT, appendix B.4): predict the region of each phrase in a caption."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from grounded_attention.metrics.item_scores import ID_COLUMNS, StreamingMetric
from grounded_attention.modeling.task_losses import grounding_divergence_sum
from grounded_attention.pages.failures import Judged
from grounded_attention.pages.overlay import GOLD, PREDICTED, Box
from grounded_attention.utils.boxes import IOU_THRESHOLD, Boxes, box_iou, enclosing_box
from grounded_attention.utils.named_types import Batch, Fields
from grounded_attention.utils.plain_text import check_one_of
from grounded_attention.utils.schema import Of, Section

from .caption_rows import to_rows
from .judges import NO_BOX, JudgeContext, Rows
from .task import (
    TEXT_AND_REGIONS,
    Examples,
    LossComponent,
    Metric,
    Task,
    region_arguments,
    text_inputs,
)

RANKS = (1, 5, 10)


def first_hit(ranked: Boxes, gold: Boxes, protocol: str = "any_box") -> int | None:
    """The rank (from 1) of the first box that finds the phrase; `None` if no box does."""
    gold = np.asarray(gold, dtype=np.float64).reshape(-1, 4)
    targets = enclosing_box(gold)[None] if protocol == "merged_box" else gold
    hits = (box_iou(ranked, targets) >= IOU_THRESHOLD).any(axis=1)
    if hits.any():
        return int(hits.argmax()) + 1
    return None


PROTOCOLS = ("any_box", "merged_box", "proposal")


ALL = "all"
FOUND = "upper_bound"
BY_CAPTION = "phrase_accuracy_by_caption"


class PhraseRecall(StreamingMetric):
    """A streaming metric for ranked regions.

    Uses `outputs.logits` (B, P, R), and from the batch `region_boxes` (B, R, 4), `region_candidate_mask` (B, R),
    `phrase_mask` (B, P, T), the lists `example_id` and `image_id`, and `gold`: boxes and types of each phrase of each
    example. A phrase without a token (it was cut) is a miss.

    Args:
        protocol (`str`, *optional*, defaults to `"proposal"`): see
            `grounded_attention.tasks.phrase_grounding.first_hit`.

    Raises:
        ValueError: for an unknown protocol.
    """

    def __init__(self, protocol: str = "proposal"):
        super().__init__()
        check_one_of(protocol, PROTOCOLS, "protocol ")
        self.protocol = protocol
        self._items: dict[str, list] = {column: [] for column in (*ID_COLUMNS, BY_CAPTION)}

    def update(self, outputs: Any, batch: Batch) -> None:
        """Ranks the regions of every phrase of a batch."""
        for example, phrases in enumerate(batch["gold"]):
            ranks = []
            for place, (gold, types) in enumerate(phrases):
                ranks.append(first_hit(rank_boxes(outputs, batch, example, place), gold, self.protocol))
                for kind in (ALL, *types):
                    self._count(kind, ranks[-1])
            for column in ID_COLUMNS:
                self._items[column].append(batch[column][example])
            right = sum(rank is not None and rank <= 1 for rank in ranks)
            self._items[BY_CAPTION].append(right / len(ranks) if ranks else None)

    def _count(self, kind: str, rank: int | None) -> None:
        names = [f"recall@{k}" for k in RANKS if rank is not None and rank <= k] + [FOUND] * (rank is not None)
        self._add(**{f"{kind}:{name}": 1 for name in ("count", *names)})

    def compute(self, state: Mapping[str, Tensor]) -> Fields:
        """
        `phrase_accuracy` (recall at 1), `phrase_recall@k` and `phrase_upper_bound`, also by type, and `phrase_count`.

        A phrase with two types counts for both. A state has the number of phrases and of found phrases, of all and of
        each type: `<type>:<name>` -> () float64.
        """
        number = {key: float(value) for key, value in state.items()}
        kinds = sorted({key.partition(":")[0] for key in state} - {ALL})
        metrics: Fields = {}
        for kind in [ALL, *kinds] if state else []:
            total = number[f"{kind}:count"]
            suffix = "" if kind == ALL else f"_{kind}"
            for name in (*(f"recall@{k}" for k in RANKS), FOUND):
                metrics[f"phrase_{name}{suffix}"] = number.get(f"{kind}:{name}", 0.0) / total
        accuracy = {"phrase_accuracy": metrics["phrase_recall@1"]} if metrics else {}
        return {**accuracy, **metrics, "phrase_count": int(number.get(f"{ALL}:count", 0))}

    def items(self) -> dict[str, list]:
        """
        Columns `example_id`, `image_id` and `phrase_accuracy_by_caption`, the share of a caption's phrases whose first
        region is right; one entry per caption. Their mean weighs captions, `phrase_accuracy` weighs phrases.
        """
        return {name: list(values) for name, values in self._items.items()}


def rank_boxes(outputs: Any, batch: Batch, example: int, place: int) -> Any:
    """The boxes (n, 4) of the regions of an example, best first for a phrase; n = 0 for a phrase that was cut."""
    candidates = batch["region_candidate_mask"][example].bool()
    if not batch["phrase_mask"][example, place].any():
        candidates = torch.zeros_like(candidates)
    scores = outputs.logits[example, place][candidates].float()
    order = scores.argsort(descending=True, stable=True)
    return batch["region_boxes"][example][candidates][order].float().cpu().numpy()


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
        phrases = [row["phrases"] for row in rows]
        length = self.options.max_text_length
        inputs = text_inputs(rows, processor, phrases=phrases, max_length=length, **region_arguments(regions))
        gold = []
        for row in rows:
            gold.append(
                [(np.asarray(p["boxes"], dtype=np.float32), tuple(p.get("types") or ())) for p in row["phrases"]]
            )
        return {**inputs, "gold": gold}

    def judge(self, outputs: Any, batch: Batch, rows: Rows, context: JudgeContext) -> Iterator[Judged]:
        for number, row in enumerate(rows):
            for place, phrase in enumerate(row["phrases"]):
                ranked = rank_boxes(outputs, batch, number, place)
                best = [Box(PREDICTED, tuple(box), "predicted") for box in ranked[:1].tolist()]
                rank = first_hit(ranked, phrase["boxes"])
                confidence = 0.0
                if best:
                    confidence = outputs.logits[number, place].float().softmax(-1).max().item()
                found = f"found at rank {rank}" if rank else NO_BOX
                kinds = {}
                if phrase.get("types"):
                    kinds["type"] = phrase["types"][0]
                gold = [Box(GOLD, tuple(box), "gold") for box in phrase["boxes"]]
                yield Judged(
                    f"{row['example_id']}:{place}",
                    row["image_id"],
                    "phrases",
                    float(rank == 1),
                    confidence,
                    phrase["text"],
                    found,
                    texts=(("phrase", phrase["text"]), ("caption", row["text"])),
                    kinds=kinds,
                    boxes=(*gold, *best),
                )


def grounding_loss(outputs: Any, batch: Batch) -> Tensor:
    """Sums over phrases the divergence from the uniform distribution over regions of the phrase (public code).

    A phrase without gold regions adds 0.
    """
    return grounding_divergence_sum(outputs.logits, batch["phrase_regions"])[0]


TASK = PhraseGrounding()

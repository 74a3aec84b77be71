# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Phrase grounding: recall at 1, 5 and 10 of ranked boxes, with three common protocols, and upper bounds."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grounded_attention.utils.boxes import IOU_THRESHOLD, Boxes, box_iou, enclosing_box
from grounded_attention.utils.named_types import Batch, Fields
from grounded_attention.utils.plain_text import check_one_of

from .item_scores import ID_COLUMNS, StreamingMetric

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
            `grounded_attention.metrics.phrase_recall.first_hit`.

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

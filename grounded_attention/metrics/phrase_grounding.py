# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Phrase grounding: recall at k of ranked boxes with three common protocols, and upper bounds."""

from collections.abc import Sequence

import numpy as np

from grounded_attention.utils.boxes import IOU_THRESHOLD, Boxes, box_iou, enclosing_box

RANKS = (1, 5, 10)


def first_hit(ranked: Boxes, gold: Boxes, protocol: str = "any_box", plus_one: bool = False) -> int | None:
    """
    The rank (from 1) of the first box that finds the phrase; `None` if no box does.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown protocol {protocol!r}; expected one of {', '.join(PROTOCOLS)}")
    gold = np.asarray(gold, dtype=np.float64).reshape(-1, 4)
    if not len(gold):
        raise ValueError("the phrase has no gold box; remove it before scoring")
    targets = enclosing_box(gold)[None] if protocol == "merged_box" else gold
    hits = (box_iou(ranked, targets, plus_one) >= IOU_THRESHOLD).any(axis=1)
    return int(hits.argmax()) + 1 if hits.any() else None


PROTOCOLS = ("any_box", "merged_box", "proposal")


def recall_at(first_hits: Sequence[int | None], ranks: Sequence[int] = RANKS) -> dict[str, float]:
    """
    Computes `recall@k` for each k, and `upper_bound`, the share of phrases that any box finds.
    """
    ranked = np.array([np.inf if rank is None else rank for rank in first_hits])
    recalls = {f"recall@{k}": float((ranked <= k).mean()) for k in ranks}
    return recalls | {"upper_bound": float(np.isfinite(ranked).mean())}

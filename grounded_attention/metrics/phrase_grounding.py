# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Phrase grounding: recall at k of ranked boxes, by the three protocols in use, with their upper bounds."""

from collections.abc import Sequence

import numpy as np

from grounded_attention.utils.boxes import Boxes, box_iou, enclosing_box

RANKS = (1, 5, 10)
THRESHOLD = 0.5


def first_hit(ranked: Boxes, gold: Boxes, protocol: str = "any_box", plus_one: bool = False) -> int | None:
    """
    The rank, from 1, of the first box that finds the phrase; None when no box does.

    Args:
        ranked (`Boxes`): (n, 4) boxes, best first.
        gold (`Boxes`): (m, 4) boxes of the phrase, m at least 1.
        protocol (`str`, *optional*, defaults to `"any_box"`): `"any_box"`, an overlap of one half with any gold box
            (MDETR); `"merged_box"`, with the smallest box around all of them (most work before); `"proposal"`, as
            `"any_box"` for boxes that a detector proposed (BAN, VisualBERT): phrases that no proposal fits stay in the
            denominator.
        plus_one (`bool`, *optional*, defaults to `False`): see `box_iou`.

    Raises:
        ValueError: an unknown protocol, or a phrase without gold box.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown protocol {protocol!r}; known: {', '.join(PROTOCOLS)}")
    gold = np.asarray(gold, dtype=np.float64).reshape(-1, 4)
    if not len(gold):
        raise ValueError("a phrase without gold box can't be found: leave it out")
    targets = enclosing_box(gold)[None] if protocol == "merged_box" else gold
    hits = (box_iou(ranked, targets, plus_one) >= THRESHOLD).any(axis=1)
    return int(hits.argmax()) + 1 if hits.any() else None


PROTOCOLS = ("any_box", "merged_box", "proposal")


def recall_at(first_hits: Sequence[int | None], ranks: Sequence[int] = RANKS) -> dict[str, float]:
    """
    `recall@k` for each k, and `upper_bound`, the share of phrases that any given box finds.

    Args:
        first_hits (`Sequence[int | None]`): what `first_hit` said of each phrase.
        ranks (`Sequence[int]`, *optional*, defaults to `RANKS`): the values of k.
    """
    found = np.array([np.inf if rank is None else rank for rank in first_hits])
    recalls = {f"recall@{k}": float((found <= k).mean()) for k in ranks}
    return recalls | {"upper_bound": float(np.isfinite(found).mean())}

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Probes scored as their authors do: pairs of captions, statements, hallucination, boxes; with intervals over images.

Each function returns name -> [`Estimate`]. A tie is a wrong choice in all of them.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou
from grounded_attention.utils.whats_up import OPPOSITES

from .object_hallucination import YES
from .significance import Estimates, estimate_ratio

# Ref-L4's mAcc: the mean of the accuracies at these thresholds.
THRESHOLDS = np.arange(10) * 0.05 + 0.5


@dataclass(frozen=True)
class Matched:
    """The scores of the captions of a picture, the right one first; of a statement, its probability and its label."""

    image_id: str
    scores: Sequence[float]
    label: int = 1
    group: str = ""
    pair: str = ""


def match_metrics(rows: Iterable[Matched]) -> Estimates:
    """
    Scores captions and statements.

    `accuracy`: the right caption has the largest score (VALSE's pairwise accuracy, SugarCrepe, What'sUp), or the
    probability of a statement is on the side of its label, 0.5 counted as true (VSR). `text`, `image` and `group`: of
    Winoground's pairs, both pictures choose their caption, both captions their picture, and both of these.
    `pair` and `set`: of What'sUp's pictures of two objects, both opposites or all four are right. `accuracy, GROUP`:
    of each group, if there are several.
    """
    hits: dict[str, list[tuple[str, float]]] = defaultdict(list)
    pairs: dict[str, list[Matched]] = defaultdict(list)
    pictured: dict[str, dict[str, bool]] = defaultdict(dict)
    for row in rows:
        if row.pair and len(row.scores) == 2:
            pairs[row.pair].append(row)
            continue
        if len(row.scores) > 1:
            right = row.scores[0] > max(row.scores[1:])
        else:
            right = (row.scores[0] >= 0.5) == row.label
        for name in ("accuracy", f"accuracy, {row.group}"):
            hits[name].append((row.image_id, float(right)))
        if row.pair:
            pictured[row.pair][row.group] = bool(right)
    for objects, verdicts in pictured.items():
        for opposites in OPPOSITES:
            if {*opposites} <= verdicts.keys():
                hits["pair"].append((objects, float(all(verdicts[each] for each in opposites))))
        if len(verdicts) == 4:
            hits["set"].append((objects, float(all(verdicts.values()))))
    for pair, both in pairs.items():
        if len(both) != 2:
            raise ValueError(f"pair {pair}: {len(both)} rows, expected 2")
        (own0, other0), (own1, other1) = (row.scores for row in both)
        text = own0 > other0 and own1 > other1
        image = own0 > other1 and own1 > other0
        for name, right in (("text", text), ("image", image), ("group", text and image)):
            hits[name].append((pair, float(right)))
    single = sum(name.startswith("accuracy, ") for name in hits) == 1
    estimates = {}
    for group, items in hits.items():
        if not group.startswith("accuracy, ") or not (single or group == "accuracy, "):
            images = [image for image, _ in items]
            estimates[group] = estimate_ratio([value for _, value in items], None, images)
    return estimates


def verdict_metrics(
    predicted: Sequence[str], gold: Sequence[str], image_ids: Sequence[str], positive: str = YES
) -> Estimates:
    """`accuracy`, and `precision`, `recall` and `f1` of a positive answer: yes for POPE; no for AMBER, which looks for
    the hallucination; `yes_share`, the share of the answer yes.
    """
    positives = np.array([each == positive for each in predicted], dtype=float)
    true = np.array([each == positive for each in gold], dtype=float)
    hit = positives * true
    parts = {
        "accuracy": (1.0 * (positives == true), None),
        "precision": (hit, positives),
        "recall": (hit, true),
        "f1": (2 * hit, positives + true),
        "yes_share": (positives if positive == YES else 1 - positives, None),
    }
    return {name: estimate_ratio(*pair, image_ids) for name, pair in parts.items()}


def box_metrics(
    predicted: Sequence[Sequence[float] | None],
    gold: Sequence[Sequence[float]],
    image_ids: Sequence[str],
    wrong: Sequence[bool] | None = None,
) -> Estimates:
    """`accuracy` (IoU of at least 0.5), `iou` (its mean), `center` (lmms-eval's Center_ACC: the middle of the
    predicted box is in the right one, edges included), `mean_accuracy` (Ref-L4's mAcc, thresholds 0.5 to 0.95),
    `answered` (a box can be read; a missing one is a miss in the others). With `wrong`, references that reviewers
    refused, each is given again as `NAME, reviewed` without them.
    """
    pairs = [*zip(predicted, gold, strict=True)]
    overlaps = np.array([0.0 if box is None else float(box_iou([box], [right])[0, 0]) for box, right in pairs])
    values = {
        "accuracy": overlaps >= IOU_THRESHOLD,
        "iou": overlaps,
        "center": np.array([_holds_middle(*pair) for pair in pairs]),
        "mean_accuracy": (overlaps[:, None] >= THRESHOLDS - 1e-9).mean(1),
        "answered": np.array([box is not None for box in predicted]),
    }
    kept = np.ones(len(overlaps), dtype=bool) if wrong is None else ~np.asarray(wrong, dtype=bool)
    images = np.asarray(image_ids)
    estimates = {name: estimate_ratio(each, None, image_ids) for name, each in values.items()}
    if not kept.all() and kept.any():
        estimates |= {
            f"{name}, reviewed": estimate_ratio(each[kept], None, images[kept]) for name, each in values.items()
        }
    return estimates


def _holds_middle(box: Sequence[float] | None, gold: Sequence[float]) -> bool:
    if box is None:
        return False
    x = (box[0] + box[2]) / 2
    y = (box[1] + box[3]) / 2
    return gold[0] <= x <= gold[2] and gold[1] <= y <= gold[3]

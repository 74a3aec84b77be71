# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What attention is supervised with: the gold regions of a phrase, or those of a control that should teach nothing.

A method that gains as much from random regions as from gold ones has not shown that grounding helps. Controls replace
`phrase_regions` of a training batch, so every method takes every control; what is measured stays gold.

Shape letters: B batch, P phrases, R regions, C candidate regions of one image (no padding, no whole image).
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

LABELS = ("gold", "random", "random_each_epoch", "shuffled", "irrelevant")

# What an annotation calls a phrase that is tagged nowhere, or that names nothing visible.
NO_ENTITY = (None, "", "0")

Lender = Callable[[str], Sequence[np.ndarray]]


def keyed_generator(*key: Any) -> np.random.Generator:
    """The random generator of a key: the same in every process, worker and batch."""
    digest = hashlib.blake2b("\0".join(map(str, key)).encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def control_labels(
    labels: str,
    batch: Mapping[str, Tensor],
    image_ids: Sequence[str],
    entities: Sequence[Sequence[str | None]],
    *,
    seed: int = 0,
    epoch: int = 0,
    lender: Lender | None = None,
) -> Tensor:
    """The regions that phrases are supervised with, in the place of `phrase_regions`.

    Phrases without a gold region stay without, and the whole image is no target. What is drawn depends on seed, image
    and entity alone (and the epoch, for `"random_each_epoch"`): phrases of one entity get the same regions in every
    example of the image, whatever else is in the batch.

    Args:
        labels: one of
            - `"gold"`: the batch's own;
            - `"random"`: as many regions as a phrase has gold ones, drawn uniformly from the others; all the others
              where there are fewer;
            - `"random_each_epoch"`: the same, drawn again in each epoch;
            - `"shuffled"`: the target of a phrase of another image. An index beyond the image's last region becomes
              the last;
            - `"irrelevant"`: all regions that are not gold.
        batch: `phrase_regions` (B, P, R) and `region_candidate_mask` (B, R), bool.
        image_ids: B names.
        entities: for each example the entity of its phrases, in their order; may be shorter than P. Phrases without
            one (`None`, `""`, `"0"`) count as one entity where they have the same gold regions.
        seed: of what is drawn.
        epoch: from 0.
        lender: image id -> the targets of another image's phrases, each (n,) int64 indices of its candidate regions,
            at least one target of at least one region. For `"shuffled"`.

    Returns:
        (B, P, R) bool.

    Raises:
        ValueError: unknown labels, or `"shuffled"` without a lender.
    """
    if labels not in LABELS:
        raise ValueError(f"labels={labels!r} is unknown; expected one of {', '.join(LABELS)}")
    if labels == "gold":
        return batch["phrase_regions"]
    if labels == "shuffled" and lender is None:
        raise ValueError("labels='shuffled' takes the targets of another image's phrases: give a lender")
    candidates = batch["region_candidate_mask"].bool()[:, None]
    gold = batch["phrase_regions"].bool() & candidates
    if labels == "irrelevant":
        return candidates & ~gold & gold.any(-1, keepdim=True)
    drawn = torch.zeros_like(gold)
    for example, image in enumerate(image_ids):
        columns = candidates[example, 0].nonzero()[:, 0]
        right = gold[example][:, columns].numpy()
        lent = lender(image) if lender is not None and labels == "shuffled" else None
        for phrase in np.flatnonzero(right.any(-1)):
            key = (seed, labels, image, _entity(entities[example], int(phrase), right[phrase]))
            rng = keyed_generator(*key, epoch if labels == "random_each_epoch" else "")
            chosen = _others(right[phrase], rng) if lent is None else _lent(lent, len(columns), rng)
            drawn[example, phrase, columns[chosen]] = True
    return drawn


def _entity(entities: Sequence[str | None], phrase: int, gold: np.ndarray) -> str:
    entity = entities[phrase] if phrase < len(entities) else None
    return f"regions {np.flatnonzero(gold).tolist()}" if entity in NO_ENTITY else f"entity {entity}"


def _others(gold: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """As many regions as are gold (C,), of those that are not."""
    order = np.argsort(np.where(gold, np.inf, rng.random(len(gold))), kind="stable")
    return order[: min(gold.sum(), (~gold).sum())]


def _lent(targets: Sequence[np.ndarray], count: int, rng: np.random.Generator) -> np.ndarray:
    """One of the lent targets, within `count` regions."""
    return np.minimum(targets[int(rng.integers(len(targets)))], count - 1)

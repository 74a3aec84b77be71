# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Labels of attention supervision: the gold regions of a phrase, or control regions that should teach nothing.

If a method gains as much from random regions as from gold regions, it does not show that grounding helps. Controls
replace `phrase_regions` in a training batch, so all methods work with all controls. Evaluation always uses gold.

Shape letters: B batch, P phrases, R regions, C candidate regions of one image (without padding and whole image).
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grounded_attention.utils.named_types import Batch
from grounded_attention.utils.schema import check_names

from .registry import LABELS

# Annotated entities of phrases that have no entity, or that name nothing visible.
NO_ENTITY = (None, "", "0")

DonorTargets = Callable[[str], Sequence[np.ndarray]]


def keyed_generator(*key: Any) -> np.random.Generator:
    """Makes the random generator of a key; it is the same in every process, worker and batch."""
    digest = hashlib.blake2b("\0".join(map(str, key)).encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def control_labels(
    labels: str,
    batch: Batch,
    image_ids: Sequence[str],
    entities: Sequence[Sequence[str | None]],
    *,
    seed: int = 0,
    epoch: int = 0,
    donor_targets: DonorTargets | None = None,
) -> Tensor:
    """Makes the regions that supervise phrases, which replace `phrase_regions`. Phrases without a gold region stay
    without regions, and the whole image is never a target. The draws depend only on the seed, image and entity (and on
    the epoch for `"random_each_epoch"`).
    """
    check_names([labels], LABELS, "labels=")
    if labels == "gold":
        return batch["phrase_regions"]
    if labels == "shuffled" and donor_targets is None:
        raise ValueError("labels='shuffled' uses the targets of phrases of another image: give donor_targets")
    candidates = batch["region_candidate_mask"].bool()[:, None]
    gold = batch["phrase_regions"].bool() & candidates
    if labels == "irrelevant":
        return candidates & ~gold & gold.any(-1, keepdim=True)
    drawn = torch.zeros_like(gold)
    for example, image in enumerate(image_ids):
        columns = candidates[example, 0].nonzero()[:, 0]
        right = gold[example][:, columns].numpy()
        donated = None
        if donor_targets is not None and labels == "shuffled":
            donated = donor_targets(image)
        for phrase in np.flatnonzero(right.any(-1)):
            key = (seed, labels, image, _entity(entities[example], int(phrase), right[phrase]))
            rng = keyed_generator(*key, epoch if labels == "random_each_epoch" else "")
            if donated is None:
                chosen = _random(right[phrase], rng)
            else:
                chosen = np.minimum(donated[int(rng.integers(len(donated)))], len(columns) - 1)
            drawn[example, phrase, columns[chosen]] = True
    return drawn


def _entity(entities: Sequence[str | None], phrase: int, gold: np.ndarray) -> str:
    entity = entities[phrase] if phrase < len(entities) else None
    if entity in NO_ENTITY:
        return f"regions {np.flatnonzero(gold).tolist()}"
    return f"entity {entity}"


def _random(gold: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws as many regions as there are gold regions (C,), from those that are not gold."""
    order = np.argsort(np.where(gold, np.inf, rng.random(len(gold))), kind="stable")
    return order[: min(gold.sum(), (~gold).sum())]

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pre-training on captions: masked words with visual clues, masked regions with linguistic clues."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from evaluation.classification import ClassificationAccuracy
from modeling import VLBertForPreTraining

from .masking import (
    REGION_PROBABILITY,
    REGIONS_KEPT,
    WORD_PROBABILITY,
    WordMasker,
    choose_regions,
    mean_of_visible,
)
from .task import TEXT_AND_REGIONS, Batch, LossComponent, RowGenerator, Task, region_arguments


def captions(split: datasets.Dataset) -> datasets.Dataset:
    """One row a related caption: `image_id`, `caption_id`, `text`."""

    def flatten(images):
        rows = [
            (image_id, caption["caption_id"], caption["text"])
            for image_id, listed in zip(images["image_id"], images["captions"], strict=True)
            for caption in listed
            if caption["related"]
        ]
        return {"image_id": [r[0] for r in rows], "caption_id": [r[1] for r in rows], "text": [r[2] for r in rows]}

    return split.map(flatten, batched=True, remove_columns=split.column_names)


def collate(
    rows: Sequence[Mapping[str, Any]],
    regions: Sequence[Any] | None,
    processor: Any,
    generator: RowGenerator,
    *,
    word_probability: float = WORD_PROBABILITY,
    region_probability: float = REGION_PROBABILITY,
    regions_kept: float = REGIONS_KEPT,
) -> dict[str, Any]:
    """Captions -> masked model inputs and targets, see `VLBertForPreTraining.forward`.

    Args:
        word_probability: chance of a word to be predicted.
        region_probability: chance of a region to be predicted.
        regions_kept: share of the predicted regions that stay visible.

    Raises:
        ValueError: no regions.
    """
    if regions is None:
        raise ValueError("pre-training on captions needs regions: give data.regions a region table")
    batch = dict(processor(text=[row["text"] for row in rows], return_tensors="pt", **region_arguments(regions)))
    generators = [generator(row["caption_id"]) for row in rows]
    mask_words(batch, _word_masker(processor.tokenizer, word_probability), generators)
    mask_regions(batch, [record.classes for record in regions], generators, region_probability, regions_kept)
    return batch


@lru_cache(maxsize=4)
def _word_masker(tokenizer: Any, probability: float) -> WordMasker:
    return WordMasker(tokenizer, probability)


def mask_words(batch: dict[str, Any], masker: WordMasker, generators: Sequence[np.random.Generator]) -> None:
    """Masks `input_ids` in place and adds `labels` (B, T)."""
    masked = [masker(ids, rng) for ids, rng in zip(batch["input_ids"].numpy(), generators, strict=True)]
    batch["input_ids"] = torch.from_numpy(np.stack([ids for ids, _ in masked]))
    batch["labels"] = torch.from_numpy(np.stack([labels for _, labels in masked]))


def mask_regions(
    batch: dict[str, Any],
    classes: Sequence[np.ndarray],
    generators: Sequence[np.random.Generator],
    probability: float = REGION_PROBABILITY,
    kept: float = REGIONS_KEPT,
) -> None:
    """Adds `masked_regions` and `region_labels` (B, R), and takes the hidden regions out of the whole-image mean."""
    candidates = batch["region_candidate_mask"]
    chosen = [choose_regions(r, rng, probability, kept) for r, rng in zip(candidates.numpy(), generators, strict=True)]
    predicted, hidden = (torch.from_numpy(np.stack(part)) for part in zip(*chosen, strict=True))
    labels = torch.full(candidates.shape, -100, dtype=torch.int64)
    for row, mask, values in zip(labels, candidates, classes, strict=True):
        row[mask] = torch.from_numpy(values[: int(mask.sum())].astype(np.int64))
    batch["region_labels"] = labels.masked_fill(~predicted, -100)
    batch["masked_regions"] = hidden
    batch["region_features"][:, 0] = mean_of_visible(batch["region_features"], candidates, hidden)


def word_loss(outputs: Any, batch: Batch) -> Tensor:
    """Cross-entropy of the masked pieces, summed."""
    return F.cross_entropy(outputs.mlm_logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")


def region_loss(outputs: Any, batch: Batch) -> Tensor:
    """Cross-entropy of the detector's class of the chosen regions, summed."""
    return F.cross_entropy(outputs.region_logits.flatten(0, 1), batch["region_labels"].flatten(), reduction="sum")


TASK = Task(
    name="pretraining",
    builder="flickr30k_entities",
    layout="caption",
    model_class=VLBertForPreTraining,
    model_inputs=(*TEXT_AND_REGIONS, "masked_regions"),
    losses=(
        LossComponent("words", word_loss, lambda batch: (batch["labels"] >= 0).sum()),
        LossComponent("regions", region_loss, lambda batch: (batch["region_labels"] >= 0).sum()),
    ),
    metrics=lambda: [
        ClassificationAccuracy("words", "mlm_logits", "labels"),
        ClassificationAccuracy("regions", "region_logits", "region_labels"),
    ],
    collate=collate,
    to_rows=captions,
)

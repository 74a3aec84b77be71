# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Masking of words and regions for pre-training (VL-BERT, section 3.3)."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from grounded_attention.utils.boxes import box_iou
from grounded_attention.utils.named_types import Fields

from .task import pad_labels

WORD_PROBABILITY = 0.15
REGION_PROBABILITY = 0.15
# What happens to a region that overlaps a predicted one, and the overlap.
CoMasking = Literal["none", "paper", "released"]
OVERLAP = 0.4


class WordMasker:
    """Masks all pieces of chosen words: 80% become [MASK], 10% random pieces, 10% stay; all are predicted."""

    def __init__(self, tokenizer, probability: float = WORD_PROBABILITY):
        self.probability = probability
        self.mask_id = tokenizer.mask_token_id
        self.special_ids = np.array(sorted(tokenizer.all_special_ids))
        pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        self.continues = np.array([piece.startswith("##") for piece in pieces])
        self.random_ids = np.setdiff1d(np.arange(len(pieces)), self.special_ids)

    def __call__(self, input_ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Masks one row."""
        ordinary = ~np.isin(input_ids, self.special_ids)
        word = np.cumsum(~self.continues[input_ids] | ~ordinary) - 1
        words = word.max(initial=-1) + 1
        chosen = (rng.random(words) < self.probability)[word] & ordinary
        fate = rng.random(words)[word]
        masked = np.where(chosen & (fate < 0.8), self.mask_id, input_ids)
        replaced = chosen & (fate >= 0.8) & (fate < 0.9)
        masked = np.where(replaced, rng.choice(self.random_ids, len(input_ids)), masked)
        return masked, np.where(chosen, input_ids, -100)


@lru_cache(maxsize=4)
def word_masker(tokenizer: Any, probability: float) -> WordMasker:
    """Makes the word masker for a tokenizer; it is cached, because it reads the whole vocabulary."""
    return WordMasker(tokenizer, probability)


def mask_words(batch: Fields, masker: WordMasker, generators: Sequence[np.random.Generator]) -> None:
    """Masks `input_ids` in place and adds `labels` (B, T), -100 if a token is not predicted."""
    rows = batch["input_ids"].numpy()
    labels = []
    for row, length, rng in zip(rows, batch["attention_mask"].sum(1).tolist(), generators, strict=True):
        row[:length], row_labels = masker(row[:length], rng)
        labels.append(row_labels.tolist())
    batch["labels"] = pad_labels(labels, rows.shape[1])


class ChosenRegions(NamedTuple):
    """The regions of an image that a model has to predict, (n,) bool each."""

    predicted: np.ndarray
    hidden: np.ndarray
    exchanged: np.ndarray


def choose_regions(
    count: int,
    rng: np.random.Generator,
    probability: float = REGION_PROBABILITY,
    kept: float = 0.0,
    exchanged: float = 0.0,
) -> ChosenRegions:
    """Chooses the regions of an image that are predicted, and those that are hidden from the model."""
    predicted = rng.random(count) < probability
    fate = rng.random(count)
    shown = fate < kept + exchanged
    return ChosenRegions(predicted, predicted & ~shown, predicted & shown & (fate >= kept))


def find_overlapping(record: Any, chosen: np.ndarray) -> np.ndarray:
    """The regions whose overlap with a chosen one is above 0.4, those included; boxes include their last pixel."""
    pixels = record.boxes * np.array([record.width, record.height] * 2)
    return np.any(box_iou(pixels, pixels[chosen], plus_one=True) > OVERLAP, axis=1)


def hide_overlapping(record: Any, chosen: ChosenRegions) -> ChosenRegions:
    """Also hides the regions that overlap a hidden one; they are not predicted (12-in-1 paper)."""
    hidden = chosen.hidden | find_overlapping(record, chosen.hidden)
    return ChosenRegions(chosen.predicted, hidden, chosen.exchanged & ~hidden)


def mean_of_visible(features: np.ndarray, hidden: np.ndarray, counted: np.ndarray | None = None) -> np.ndarray:
    """Computes the whole-image feature: the mean of regions that are not hidden, or 0."""
    if hidden.all():
        return np.zeros(features.shape[1], dtype=np.float32)
    if counted is None:
        return features[~hidden].mean(axis=0, dtype=np.float32)
    return features[~hidden].sum(axis=0, dtype=np.float32) / np.float32(max(counted.sum(), 1))

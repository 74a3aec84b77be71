# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Masking of words and regions for pre-training (VL-BERT, section 3.3)."""

import numpy as np
import torch
from torch import Tensor

WORD_PROBABILITY = 0.15
REGION_PROBABILITY = 0.15
REGIONS_KEPT = 0.1  # of the chosen regions, how many keep their feature and are still predicted (public code)


class WordMasker:
    """Whole-word masking: all pieces of a chosen word are masked together, and predicted.

    Of the chosen words 80% become [MASK], 10% random pieces of the vocabulary, 10% stay as they are.

    Args:
        tokenizer: a WordPiece tokenizer; pieces that continue a word start with `##`.
        probability: chance of a word to be chosen, in [0, 1].
    """

    def __init__(self, tokenizer, probability: float = WORD_PROBABILITY):
        self.probability = probability
        self.mask_id = tokenizer.mask_token_id
        self.special_ids = np.array(sorted(tokenizer.all_special_ids))
        pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        self.continues = np.array([piece.startswith("##") for piece in pieces])
        self.random_ids = np.setdiff1d(np.arange(len(pieces)), self.special_ids)

    def __call__(self, input_ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """One row of ids (T,) -> (masked ids (T,), labels (T,) with -100 where nothing is predicted)."""
        ordinary = ~np.isin(input_ids, self.special_ids)
        word = np.cumsum(~self.continues[input_ids] | ~ordinary) - 1
        words = word[-1] + 1
        chosen = (rng.random(words) < self.probability)[word] & ordinary
        fate = rng.random(words)[word]
        masked = np.where(chosen & (fate < 0.8), self.mask_id, input_ids)
        replaced = chosen & (fate >= 0.8) & (fate < 0.9)
        masked = np.where(replaced, rng.choice(self.random_ids, len(input_ids)), masked)
        return masked, np.where(chosen, input_ids, -100)


def choose_regions(
    candidates: np.ndarray,
    rng: np.random.Generator,
    probability: float = REGION_PROBABILITY,
    kept: float = REGIONS_KEPT,
) -> tuple[np.ndarray, np.ndarray]:
    """One row's regions to predict, and those of them whose feature is hidden.

    Args:
        candidates: (R,) bool, the detected regions (never the whole-image region).

    Returns:
        (R,) bool predicted, (R,) bool hidden; hidden is a subset of predicted.
    """
    predicted = candidates & (rng.random(len(candidates)) < probability)
    hidden = predicted & (rng.random(len(candidates)) >= kept)
    return predicted, hidden


def mean_of_visible(features: Tensor, candidates: Tensor, hidden: Tensor) -> Tensor:
    """The whole-image feature without what the hidden regions would give away: (B, D) mean over visible regions."""
    visible = (candidates & ~hidden).to(features.dtype)
    return torch.einsum("br,brd->bd", visible, features) / visible.sum(1, keepdim=True).clamp(min=1)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Draws balanced pairs of phrases (or words) and regions from the alignment matrix (Chou et al., 2022, section III-B).

Shape letters: B batch, T text, R regions, P phrases, M rows of the matrix (phrases, or tokens), N pairs, L tokens of
the longest phrase.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from .alignment import grounded_phrases, region_mask, token_mask
from .draws import RowGenerators

# Pairs are padded to a multiple of this, so batches have few different shapes.
_PAIR_MULTIPLE = 8


@dataclass(frozen=True)
class AlignmentMatrix:
    """The alignment matrix of each example."""

    matches: Tensor  # (B, M, R) bool, the pairs that belong together
    allowed: Tensor  # (B, M, R) bool, the pairs that may be drawn
    weights: Tensor  # (B, M, R) float32, the confidence of each entry
    phrases: Tensor  # (B, M, L) int64, the text columns of the tokens of each row in order, -1 for padding


def alignment_matrix(batch: Mapping[str, Any], level: str) -> AlignmentMatrix:
    """Computes the matrix of each example. Its rows are the phrases, or for the level `"token"` their tokens."""
    tokens, matches = (each.bool() for each in grounded_phrases(batch))
    valid = token_mask(batch)
    regions = region_mask(batch)
    if valid is not None:
        tokens = tokens & valid[:, None]
    if batch.get("region_candidate_mask") is not None:
        regions = batch["region_candidate_mask"].bool()
    scores = batch.get("phrase_scores")
    weights = torch.ones_like(matches, dtype=torch.float32) if scores is None else scores.float()
    if level == "token":
        phrases = torch.arange(tokens.shape[2], device=tokens.device).expand(len(tokens), -1)[..., None]
        matches, weights = _token_entries(tokens, matches, weights)
        rows = tokens.any(1)
    else:
        phrases = _token_columns(tokens)
        rows = tokens.any(2)
    allowed = rows[..., None].expand_as(matches)
    return AlignmentMatrix(matches, allowed if regions is None else allowed & regions[:, None], weights, phrases)


def _token_entries(tokens: Tensor, matches: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Converts entries of phrases (B, P, R) to entries of their tokens (B, T, R)."""
    # amax fails without phrases
    matches = F.pad(matches, (0, 0, 0, 1))
    weights = F.pad(weights, (0, 0, 0, 1))
    tokens = F.pad(tokens, (0, 0, 0, 1))[..., None]  # (B, P + 1, T, 1)
    both = tokens & matches[:, :, None]  # (B, P + 1, T, R)
    shared = weights[:, :, None] * tokens
    matched = both.any(1)
    return matched, torch.where(matched, (shared * both).amax(1), shared.amax(1))


def _token_columns(tokens: Tensor) -> Tensor:
    """The columns of the tokens of each phrase (B, P, T) in order: (B, P, L), at least one phrase and one column."""
    longest = max(int(tokens.sum(-1).max()) if tokens.numel() else 0, 1)
    columns = torch.arange(tokens.shape[2], device=tokens.device).expand_as(tokens)
    ordered = torch.where(tokens, columns, tokens.shape[2]).sort(-1).values[..., :longest]
    ordered = ordered.masked_fill(ordered == tokens.shape[2], -1)
    if ordered.shape[1]:
        return ordered
    return F.pad(ordered, (0, 0, 0, 1), value=-1)


def draw_pairs(matrix: AlignmentMatrix, generators: RowGenerators) -> dict[str, Tensor]:
    """Draws as many matching pairs as other pairs of each example, without repetition."""
    arrays = (matrix.matches.cpu().numpy(), matrix.allowed.cpu().numpy())
    drawn = [
        _draw_example(matches & allowed, allowed & ~matches, generators, row)
        for row, (matches, allowed) in enumerate(zip(*arrays, strict=True))
    ]
    width = -(-max(1, *(len(pairs) for pairs, _ in drawn)) // _PAIR_MULTIPLE) * _PAIR_MULTIPLE
    pairs = torch.full((len(drawn), width, 2), -1)
    labels = torch.zeros(len(drawn), width)
    weights = torch.zeros(len(drawn), width)
    for row, (drawn_pairs, matching) in enumerate(drawn):
        pairs[row, : len(drawn_pairs)] = torch.from_numpy(drawn_pairs)
        labels[row, :matching] = 1.0
        weights[row, : len(drawn_pairs)] = matrix.weights[row].cpu()[drawn_pairs[:, 0], drawn_pairs[:, 1]]
    device = matrix.matches.device
    return {"pairs": pairs.to(device), "labels": labels.to(device), "weights": weights.to(device)}


def _draw_example(
    matching: np.ndarray, others: np.ndarray, generators: RowGenerators, row: int
) -> tuple[np.ndarray, int]:
    """The pairs of an example (n, 2), the matching ones first, and their number."""
    sides = [np.argwhere(matching), np.argwhere(others)]
    count = min(len(sides[0]), len(sides[1]))
    if not count:
        return np.zeros((0, 2), dtype=np.int64), 0
    rng = generators(row)
    return np.concatenate([side[np.sort(rng.permutation(len(side))[:count])] for side in sides]), count

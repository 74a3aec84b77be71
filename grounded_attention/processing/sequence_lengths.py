# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Length limits of texts and regions of an example, alone and together.

Shapes: S texts of an example, B batch, T text columns.
"""

from collections.abc import Sequence

import numpy as np

from .sequence_layouts import SequenceLayout, kept_lengths

# Columns that a text keeps at least when text and regions share a limit (VL-BERT public code).
MIN_TEXT = 2
# A tokenizer without a limit has a huge number instead.
NO_LIMIT = 1_000_000


def fit_lengths(
    layouts: Sequence[SequenceLayout],
    lengths: np.ndarray,
    regions: np.ndarray,
    truncation: bool | str,
    max_length: int,
    max_sequence_length: int | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Computes how many word pieces of each text and how many regions stay."""
    specials = np.array([layout.special_count for layout in layouts])
    if truncation in (False, None, "do_not_truncate"):
        if max_sequence_length is not None:
            raise ValueError("max_sequence_length also cuts texts; remove it, or set truncation=True.")
        return lengths, regions
    strategy = "longest_first" if truncation is True else str(truncation)
    if max_length < specials.max(initial=0):
        raise ValueError(f"max_length={max_length} is too small for {specials.max()} special tokens; increase it.")
    budget = max_length - specials
    kept = kept_lengths(lengths, budget, strategy)
    if max_sequence_length is None:
        return kept, regions
    shortest = np.maximum(specials, MIN_TEXT)
    needed = int((shortest + (regions > 0)).max(initial=0))
    if max_sequence_length < needed:
        raise ValueError(f"max_sequence_length={max_sequence_length}, expected at least {needed} for these examples.")
    text, regions = share_columns(kept.sum(axis=0) + specials, shortest, regions, max_sequence_length)
    return kept_lengths(lengths, np.minimum(budget, text - specials), strategy), regions


def share_columns(
    text: np.ndarray, shortest: np.ndarray, regions: np.ndarray, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """Shares a limit between text and regions: the longer side loses one column at a time until both fit.

    If both sides are equal, the text loses one, but it keeps `shortest` columns (VL-BERT public code). So a side
    shorter than half of the limit keeps all its columns; two longer sides get half each, and the regions get the odd
    column.
    """
    kept = np.maximum(np.maximum(limit // 2, limit - regions), shortest)
    kept = np.minimum(kept, text)
    return kept, np.minimum(regions, limit - kept)


def min_width(padding: bool | str, limit: int, lengths: np.ndarray) -> int:
    """Returns the smallest width T that `padding` requires."""
    if padding in (True, "longest"):
        return 0
    if padding == "max_length":
        if limit >= NO_LIMIT:
            raise ValueError("padding='max_length' needs max_length, since the tokenizer has no model_max_length.")
        return limit
    if padding not in (False, None, "do_not_pad"):
        raise ValueError(f"Unknown padding {padding!r}; known: True, 'longest', 'max_length', False.")
    if len(set(lengths.tolist())) > 1:
        raise ValueError(f"padding=False, but the examples have {lengths.tolist()} tokens; use padding=True.")
    return 0

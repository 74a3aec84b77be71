# Copyright 2026 The grounded-attention authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""How long texts and regions of an example may be, alone and together.

Shapes: S texts of an example, B batch.
"""

from collections.abc import Sequence

import numpy as np

from .sequence_layouts import SequenceLayout, kept_lengths

# What a text keeps when text and regions share a limit (VL-BERT public code).
MIN_TEXT = 2
# A tokenizer without a limit has a huge number in the place of one.
NO_LIMIT = 1_000_000


def fit_lengths(
    layouts: Sequence[SequenceLayout],
    lengths: np.ndarray,
    regions: np.ndarray,
    truncation: bool | str,
    max_length: int,
    max_sequence_length: int | None,
) -> tuple[np.ndarray, np.ndarray]:
    """How many pieces of each text and how many regions stay.

    Args:
        layouts: The layout of each example.
        lengths: (S, B) int64, word pieces of each text.
        regions: (B,) int64, regions of each example, the whole image counted, 0 without an image.
        truncation: How texts share what they lose, see [`kept_lengths`]; `False` cuts none.
        max_length: Columns for the text part, special tokens counted.
        max_sequence_length: Columns for text and regions together, see [`share_columns`]; END is not counted.

    Returns:
        (S, B) and (B,) int64.

    Raises:
        ValueError: A limit below what an example cannot do without, or one on the whole sequence without truncation.
    """
    specials = np.array([layout.special_count for layout in layouts])
    if truncation in (False, None, "do_not_truncate"):
        if max_sequence_length is not None:
            raise ValueError("max_sequence_length cuts texts too, so it does not go with truncation=False.")
        return lengths, regions
    strategy = "longest_first" if truncation is True else str(truncation)
    if max_length < specials.max(initial=0):
        raise ValueError(f"max_length={max_length} leaves no room for {specials.max()} special tokens.")
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
    """Columns of text and of regions once the longer side has lost one at a time until both fit (VL-BERT public code).

    The regions lose one where they are more, else the text, which keeps `shortest` columns. All (B,) int64. So a side
    shorter than half of the limit keeps all it has, and two longer ones get half each, the odd column for a region.
    """
    kept = np.maximum(np.maximum(limit // 2, limit - regions), shortest)
    kept = np.minimum(kept, text)
    return kept, np.minimum(regions, limit - kept)


def min_width(padding: bool | str, limit: int, lengths: np.ndarray) -> int:
    """The width T that `padding` asks for at least, for text parts of `lengths` (B,).

    Raises:
        ValueError: An unknown padding, `False` for texts of different lengths, or `"max_length"` without a limit.
    """
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

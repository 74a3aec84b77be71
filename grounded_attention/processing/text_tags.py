# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tags of a batch: the region that the tokens of a text see as their visual part.

Shapes: B batch, T text columns, R region columns; F tags of the whole batch in one row.
"""

from collections.abc import Sequence

import numpy as np

from ..utils.named_types import Columns
from .phrase_arrays import check_indices, covered_tokens, flatten_phrases
from .region_columns import RegionColumns
from .sequence_layouts import EncodedTexts, TextColumns

Tagged = tuple[np.ndarray, np.ndarray, np.ndarray]


def token_regions(tagged: Tagged, columns: TextColumns, regions: RegionColumns) -> np.ndarray:
    """Computes the region column that each text token sees. A token has a tag if it shares a character with the tag's
    span; of several tags the first is used.
    """
    # Copies, because NumPy does not define the order of writes through reversed views.
    example, token, region = (side[::-1].copy() for side in tagged)
    out = np.full(columns.arrays["input_ids"].shape, -1, dtype=np.int64)
    out[example, token] = region  # the last write stays, so the first tag comes last
    return out


def aligned_tokens(tagged: Tagged, columns: TextColumns, regions: RegionColumns) -> np.ndarray:
    """Computes the text columns that refer to each region."""
    example, token, region = tagged
    examples = len(columns.arrays["input_ids"])
    width = regions.arrays["region_boxes"].shape[1]
    inside = region >= 0
    pairs = np.stack((example * width + region, token))[:, inside]
    place, token = np.unique(pairs, axis=1)  # sorted: by example and region, then by column
    slot = np.arange(len(place)) - np.searchsorted(place, place)
    most = 1 + int(slot.max(initial=0))
    out = np.full((examples * width, most), -1, dtype=np.int64)
    out[place, slot] = token
    return out.reshape(examples, width, most)


def find_tagged(
    tags: Sequence[Sequence[Columns] | None],
    texts: list[list[str]],
    encoded: EncodedTexts,
    columns: TextColumns,
    regions: RegionColumns,
) -> Tagged:
    """Returns every tagged token in the order of the tags: example, text column, region column (-1 if dropped)."""
    flat = flatten_phrases(tags, texts, kind="tag")
    indices = [check_indices(flat, index, regions.counts) for index in range(len(flat.records))]
    tag_of = np.repeat(np.arange(len(indices)), [len(own) for own in indices])
    covered = covered_tokens(flat, encoded)
    kept = columns.kept[flat.text, flat.example][:, None]
    covered &= np.arange(covered.shape[1]) < kept
    pair, token = np.nonzero(covered[tag_of])
    tag = tag_of[pair]
    example = flat.example[tag]
    region = np.concatenate([*indices, np.zeros(0, np.int64)])[pair]
    column = columns.first[flat.text[tag], example] + token
    return example, column, regions.columns[example, region]

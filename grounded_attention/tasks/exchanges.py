# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Captions and region features of other images in place of those of a row, for pre-training."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grounded_attention.utils.named_types import Columns, Row

from .task import Examples

DRAWS = 1000  # captions to draw before the split counts as one with a single image


def exchange_features(examples: Examples, regions: Sequence[Any], exchanged: Sequence[np.ndarray]) -> list[Any]:
    """Replaces the features of regions by those of random regions of other images of the split."""
    if examples.find_regions is None or any(record.features is None for record in regions):
        raise ValueError("options.regions_exchanged needs region features (data.regions): set it to 0")
    split = examples.split or examples.rows
    shown = []
    for row, record, mask in zip(examples.rows, regions, exchanged, strict=True):
        if mask.any():
            rng = examples.generator(f"{row['caption_id']} exchanged regions")
            features = record.features.copy()
            for place in np.flatnonzero(mask):
                features[place] = _draw_other_feature(row, split, examples.find_regions, rng)
            record = replace(record, features=features)
        shown.append(record)
    return shown


def _draw_other_feature(
    row: Row,
    split: Sequence[Columns],
    find_regions: Callable[[Columns], Any],
    rng: np.random.Generator,
) -> np.ndarray:
    """Draws the feature of a region of another image of the split."""
    for _ in range(DRAWS):
        other = draw_other_row(row, split, rng, "options.regions_exchanged")
        features = find_regions(other).features
        if len(features):
            return features[int(rng.integers(len(features)))]
    raise ValueError(f"found no regions in {DRAWS} other images: set options.regions_exchanged=0")


def exchange_captions(examples: Examples, generators: Sequence[np.random.Generator]) -> tuple[list[str], list[int]]:
    """Replaces captions, with probability 0.5, by captions of other images of the split."""
    pairs = [
        (row["text"], 1)
        if rng.random() < 0.5
        else (draw_other_row(row, examples.split or examples.rows, rng, "options.relationship")["text"], 0)
        for row, rng in zip(examples.rows, generators, strict=True)
    ]
    return [text for text, _ in pairs], [label for _, label in pairs]


def draw_other_row(row: Row, split: Sequence[Columns], rng: np.random.Generator, option: str) -> Columns:
    """Draws a row of another image of the split."""
    for _ in range(DRAWS):
        other = split[int(rng.integers(len(split)))]
        if other["image_id"] != row["image_id"]:
            return other
    raise ValueError(
        f"found no caption of an image other than {row['image_id']!r} in {len(split)} rows: {option} needs several "
        "images"
    )

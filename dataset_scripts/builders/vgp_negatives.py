# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Negative captions of VGP: for each image another image whose captions do not describe it."""

import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.regions.table import RegionTable

# Cosines are compared after rounding, so that ties (two copies of an image) break by the order of the ids and not by
# the order in which a matrix product happens to add.
_DIGITS = 5
_CHUNK = 1024


def seeded(*parts: object) -> random.Random:
    """A random generator that depends on the values of the parts alone, in every process."""
    return random.Random(zlib.crc32("/".join(map(str, parts)).encode()))


def random_negatives(image_ids: Sequence[str], seed: int) -> dict[str, str]:
    """Another image for each image, drawn by a generator seeded with the image's id; none where there is but one."""
    ordered = sorted(image_ids)
    if len(ordered) < 2:
        return {}
    negatives = {}
    for index, image_id in enumerate(ordered):
        # Drawing from the list without the image itself.
        other = seeded(seed, "negative", image_id).randrange(len(ordered) - 1)
        negatives[image_id] = ordered[other + (other >= index)]
    return negatives


def nearest_negatives(image_ids: Sequence[str], table: RegionTable) -> dict[str, str]:
    """The nearest other image of each image, by the cosine of the mean region feature.

    The public code of the VGP paper takes the nearest neighbour of pooled ResNet-101 features; the mean over detected
    regions stands in for them. Ties go to the image whose id comes first as text. Memory: one float32 feature an image
    and `_CHUNK` rows of cosines.

    Raises:
        DataError: The table lacks one of the images.
    """
    ordered = sorted(image_ids)
    missing = [image_id for image_id in ordered if image_id not in table]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(ordered)} images have no region features",
            file=table.path,
            where=f"image {missing[0]}",
            hint="import features of all images (grounded-attention regions import), or use negatives=random",
        )
    if len(ordered) < 2:
        return {}
    nearest = nearest_rows(table.mean_features(ordered))
    return {image_id: ordered[other] for image_id, other in zip(ordered, nearest, strict=True)}


def nearest_rows(vectors: np.ndarray) -> list[int]:
    """For each of n >= 2 vectors, (n, D) float32, the index of the other one with the largest cosine."""
    vectors = np.nan_to_num(vectors)  # an image without regions has no mean
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    nearest: list[int] = []
    chunks = range(0, len(vectors), _CHUNK)
    for start in tqdm(
        chunks, desc="Nearest images", unit_scale=_CHUNK, unit=" images", disable=len(chunks) < 2 or None
    ):
        cosines = vectors[start : start + _CHUNK] @ vectors.T
        np.round(cosines, _DIGITS, out=cosines)
        rows = np.arange(len(cosines))
        cosines[rows, start + rows] = -np.inf
        nearest += cosines.argmax(axis=1).tolist()
    return nearest


def draw_negatives(
    own: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]], count: int, rng: random.Random
) -> list[tuple[Mapping[str, Any], Mapping[str, Any], str]]:
    """Pairs of a caption of the image and a caption of the negative image.

    As in the public code, every own caption meets one wrong caption after the other (two of them for 5 captions and 10
    pairs) and a coin decides which comes first. A wrong caption that reads like an own one is left out.

    Returns:
        At most `count` triples (caption1, caption2, `"first"` or `"second"`: which of them describes the image).
    """
    own_texts = {caption["text"].casefold() for caption in own}
    wrong = [caption for caption in others if caption["text"].casefold() not in own_texts]
    rng.shuffle(wrong)
    pairs = []
    for other, caption in [(other, caption) for other in wrong for caption in own][:count]:
        first = rng.random() < 0.5
        pairs.append((caption, other, "first") if first else (other, caption, "second"))
    return pairs

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Negative captions of VGP: for each image a donor image, whose captions do not describe it."""

import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.utils.progress import phase

# Cosines are compared after rounding, so that the order of the ids breaks ties (two copies of an image), not the order
# of additions in a matrix product.
_DIGITS = 5
_CHUNK = 1024


def seeded(*parts: object) -> random.Random:
    """Returns a random generator that depends only on the values of the parts, in every process."""
    return random.Random(zlib.crc32("/".join(map(str, parts)).encode()))


def random_negatives(image_ids: Sequence[str], seed: int) -> dict[str, str]:
    """Draws a donor image for each image."""
    ordered = sorted(image_ids)
    if len(ordered) < 2:
        return {}
    negatives = {}
    for index, image_id in enumerate(ordered):
        # Draws from the list without the image itself.
        donor = seeded(seed, "negative", image_id).randrange(len(ordered) - 1)
        negatives[image_id] = ordered[donor + (donor >= index)]
    return negatives


def nearest_negatives(image_ids: Sequence[str], table: RegionTable) -> dict[str, str]:
    """Finds the nearest other image of each image, by the cosine of the mean region feature.

    The public code of the VGP paper uses the nearest neighbour of pooled ResNet-101 features; here the mean over
    detected regions replaces them. Ties go to the image whose id comes first as text. Memory: one float32 feature an
    image and `_CHUNK` rows of cosines.
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
    return {image_id: ordered[donor] for image_id, donor in zip(ordered, nearest, strict=True)}


def nearest_rows(vectors: np.ndarray) -> list[int]:
    """Finds, for each vector, the index of the other one with the largest cosine."""
    vectors = np.nan_to_num(vectors)  # an image without regions has no mean
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    nearest: list[int] = []
    chunks = range(0, len(vectors), _CHUNK)
    with phase("nearest image", len(vectors), quiet=len(chunks) < 2) as advance:
        for start in chunks:
            cosines = vectors[start : start + _CHUNK] @ vectors.T
            np.round(cosines, _DIGITS, out=cosines)
            rows = np.arange(len(cosines))
            cosines[rows, start + rows] = -np.inf
            nearest += cosines.argmax(axis=1).tolist()
            advance(len(nearest))
    return nearest


def draw_negatives(
    captions: Sequence[Mapping[str, Any]], donor_captions: Sequence[Mapping[str, Any]], count: int, rng: random.Random
) -> list[tuple[Mapping[str, Any], Mapping[str, Any], str]]:
    """Draws pairs of a caption of the image and a caption of the donor image.

    As in the public code, every caption of the image is paired with one wrong caption after the other (two of them for
    5 captions and 10 pairs), and a random bit decides which comes first. A wrong caption with the same text as one of
    the image is skipped.
    """
    texts = {caption["text"].casefold() for caption in captions}
    wrong = [caption for caption in donor_captions if caption["text"].casefold() not in texts]
    rng.shuffle(wrong)
    pairs = []
    for donor, caption in [(donor, caption) for donor in wrong for caption in captions][:count]:
        first = rng.random() < 0.5
        pairs.append((caption, donor, "first") if first else (donor, caption, "second"))
    return pairs

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Intervals and tests of an audit; they resample images, not phrases.

The phrases of one image share its regions and captions, so they are not independent. An interval that resamples
phrases is too narrow. Here an image is included or excluded as a whole. Shape letters: I images, L layers, H heads, D
draws, K columns.
"""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

# Names of groups of items; and the way of Li et al. (2020): heads are chosen on the items that they are reported on.
ALL = "all"
RELATIONS = "relations"
# Li et al. (2020), section 3.1: a head that gives more of its attention to the regions "actively pays attention".
ACTIVE_SHARE = 0.2
LEVEL = 0.95
DRAWS = 2000
PERMUTATIONS = 10_000
# Numbers in the largest temporary array, (draws of a block, I): 32 MiB of float64 for any data set.
_BLOCK = 4 * 2**20
# Most images that are counted apart. More are counted in as many blocks of whole images, so that memory has an end;
# an interval then resamples blocks.
BLOCKS = 2**12
IN_BLOCK = "block of images "


def block_of(image: str) -> str:
    """The name of an image's block, which depends on the image's name alone; that of a block is its own."""
    if image.startswith(IN_BLOCK):
        return image
    return f"{IN_BLOCK}{zlib.crc32(image.encode('utf-8', 'surrogatepass')) % BLOCKS}"


@dataclass(frozen=True, eq=False)
class Comparison:
    """The differences between two sets of answers to the same items, for each head."""

    difference: np.ndarray
    p: np.ndarray


def ratio_intervals(
    sums: npt.ArrayLike, items: npt.ArrayLike, level: float = LEVEL, draws: int = DRAWS, seed: int = 0
) -> np.ndarray:
    """Bootstrap intervals of sum(sums) / sum(items) over images for each column; one seed: paired intervals."""
    sums = np.asarray(sums, dtype=np.float64)
    items = np.asarray(items, dtype=np.float64)
    if len(items) == 1:
        return np.full((2, sums.shape[1]), np.nan)
    rng = np.random.default_rng(seed)
    ratios = np.concatenate(
        [(times @ sums) / (times @ items)[:, None] for times in _resamples(len(items), draws, rng)]
    )
    return np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2], axis=0)


def _resamples(images: int, draws: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yields blocks of counts of each image in each sample, (draws of a block, I) float64."""
    for size in _block_sizes(images, draws):
        drawn = rng.integers(images, size=(size, images)) + images * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * images).reshape(size, images).astype(np.float64)


def _block_sizes(images: int, draws: int) -> list[int]:
    most = max(1, _BLOCK // images)
    return [min(most, draws - start) for start in range(0, draws, most)]


def exchange_test(differences: np.ndarray, total: int, draws: int, seed: int) -> Comparison:
    """Runs the test on the (I, L, H) differences between two counts of right answers."""
    shape = differences.shape[1:]
    # Whole numbers in float64: sums are exact, so the comparison needs no tolerance.
    rows = differences.reshape(len(differences), -1).astype(np.float64)
    observed = rows.sum(0)
    rows = rows[rows.any(1)]  # an exchange does not change an image without a difference
    exact = len(rows) < draws.bit_length()
    signs: Iterable[np.ndarray]
    if exact:
        every = list(product((1.0, -1.0), repeat=len(rows)))
        signs = [np.array(every).reshape(len(every), len(rows))]
    else:
        signs = _drawn_signs(len(rows), draws, np.random.default_rng(seed))
    reached = np.zeros(len(observed))
    tried = 0
    for block in signs:
        reached += (np.abs(block @ rows) >= np.abs(observed)).sum(0)
        tried += len(block)
    if exact:
        p = reached / tried
    else:
        p = (reached + 1) / (tried + 1)
    return Comparison((observed / total).reshape(shape), p.reshape(shape))


def _drawn_signs(images: int, draws: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    for size in _block_sizes(images, draws):
        yield 1.0 - 2.0 * rng.integers(2, size=(size, images), dtype=np.int8)


def holm(p: npt.ArrayLike) -> np.ndarray:
    """Holm's step-down correction (1979): bounds the probability of one or more false claims among all tests."""
    values = np.asarray(p, dtype=np.float64)
    flat = values.ravel()
    order = np.argsort(flat, kind="stable")
    steps = flat[order] * np.arange(flat.size, 0, -1)
    corrected = np.empty(flat.size)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected.reshape(values.shape)

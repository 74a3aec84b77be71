# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Masks as rows have them: COCO's run lengths, compressed or not, polygons, or a picture of two values."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from grounded_attention.dataset_scripts.rows.raw import around
from grounded_attention.utils.masks import mask_corners, read_mask
from grounded_attention.utils.named_types import Columns, Size
from grounded_attention.utils.open_images import open_image

from .raw import RowError, plain, structured

MASK_NAMES = ("mask", "segmentation", "rle", "polygon", "polygons", "segments", "quad")
MAX_SHIFT = 8  # groups of 5 bits of a run length
Corners = Sequence[float]
# Pixels (H, W), or polygons of which each is (corners, 2) in pixels.
Mask = np.ndarray | list[np.ndarray]


def find_mask(record: Columns) -> tuple[Mask, Corners] | None:
    """The mask of a record and the corners in pixels of what it encloses; None without one."""
    for name in MASK_NAMES:
        value = structured(record.get(name), name)
        if value is None or isinstance(value, str):
            continue
        runs = value if isinstance(value, list) else [value]
        if isinstance(value, (bytes, np.ndarray, Image.Image)) or (isinstance(value, Mapping) and "bytes" in value):
            pixels = _of_picture(value, name)
        elif runs and all(isinstance(each, Mapping) and "counts" in each for each in runs):
            pixels = np.logical_or.reduce([_of_runs(each, name) for each in runs])
        else:
            rings = [ring for ring in _rings(plain(value), name) if len(ring) > 1]
            if rings:
                return (rings, around(np.concatenate(rings)))
            return None
        corners = mask_corners(pixels)
        if corners is None:
            return None
        return (pixels, corners)
    return None


def unite_masks(masks: Sequence[Mask], size: Size) -> np.ndarray:
    """All pixels (H, W) of masks of a picture of this width and height."""
    united = np.zeros(size[::-1], dtype=bool)
    for mask in masks:
        if isinstance(mask, list):
            for ring in mask:
                _fill(united, ring)
        elif mask.shape != united.shape:
            found = f"{mask.shape[1]} x {mask.shape[0]}"
            raise RowError("a mask of another size than its picture", found=found, expected=f"{size[0]} x {size[1]}")
        else:
            united |= mask
    return united


def _fill(pixels: np.ndarray, ring: np.ndarray) -> None:
    """Adds the pixels whose middle is inside of a polygon: an odd number of its edges is left of them."""
    crossed = np.zeros((pixels.shape[0], pixels.shape[1] + 1), dtype=np.int64)
    middles = np.arange(pixels.shape[0]) + 0.5
    for (x1, y1), (x2, y2) in zip(ring, np.roll(ring, -1, axis=0), strict=True):
        rows = np.flatnonzero((y1 <= middles) != (y2 <= middles))
        across = x1 + (middles[rows] - y1) * ((x2 - x1) / (y2 - y1 or 1))
        crossed[rows, np.ceil(across - 0.5).clip(0, pixels.shape[1]).astype(np.int64)] += 1
    pixels |= crossed.cumsum(axis=1)[:, :-1] % 2 == 1


def _of_picture(value: Any, name: str) -> np.ndarray:
    """The brighter pixels of a picture of two values; none for one of classes, or of another kind."""
    if isinstance(value, np.ndarray):
        value = value.astype(np.uint8)
    try:
        picture = np.asarray(open_image(value, name)).astype(np.int64)
    except ValueError as error:
        raise RowError(str(error)) from None
    values = picture @ [1 << 16, 1 << 8, 1]
    return (values == values.max()) & (len(np.unique(values)) == 2)


def _of_runs(value: Columns, name: str) -> np.ndarray:
    counts = value["counts"]
    if isinstance(counts, bytes):
        counts = counts.decode("latin-1")
    try:
        if isinstance(counts, str):
            counts = _decompress(counts)
        return read_mask({"size": structured(value["size"], name), "counts": counts}, name)
    except ValueError as error:
        raise RowError(str(error)) from None


def _rings(value: Any, name: str) -> list[np.ndarray]:
    """Polygons, however deep they are nested; corners may be x, y, x, y ..., pairs, or have names."""
    if isinstance(value, list) and value and not isinstance(value[0], (list, Mapping)):
        try:
            numbers = [float(each) for each in value]
            if not all(map(math.isfinite, numbers)):
                raise ValueError
        except (TypeError, ValueError):
            raise RowError(f"bad {name}", found=value, expected="numbers of a polygon, or run lengths") from None
        return [np.array(numbers[: len(numbers) // 2 * 2]).reshape(-1, 2)]
    if not isinstance(value, list):
        return []
    if all(isinstance(each, Mapping) for each in value):
        value = [[each["x"], each["y"]] for each in value if {"x", "y"} <= each.keys()]
    rings = [ring for each in value for ring in _rings(each, name)]
    pairs = rings and all(len(ring) == 1 for ring in rings)
    if pairs:
        return [np.concatenate(rings)]
    return rings


def _decompress(text: str) -> list[int]:
    """COCO's compressed run lengths: 5 bits a character, least first; from the third on differences to the one two
    before (`rleFrString` of its API)."""
    runs: list[int] = []
    place = 0
    while place < len(text):
        value = shift = 0
        more = True
        while more:
            if place >= len(text) or shift > MAX_SHIFT:
                raise ValueError(f"run lengths that are cut or have no end after {text[:place][-20:]!r}")
            bits = ord(text[place]) - 48
            value |= (bits & 0x1F) << (5 * shift)
            more = bool(bits & 0x20)
            place = place + 1
            shift = shift + 1
            if not more and bits & 0x10:
                value |= -1 << (5 * shift)
        if len(runs) > 2:
            value += runs[-2]
        runs.append(value)
    return runs

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The box around a mask: COCO's run lengths, compressed or not, polygons, or a picture of the mask."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .raw import RowError, plain, structured

MASK_NAMES = ("mask", "segmentation", "rle", "polygon", "polygons", "segments")


def mask_hull(record: Mapping[str, Any]) -> tuple[float, float, float, float] | None:
    """Corners in pixels of what the mask of a record encloses; None without a mask, or of an empty one."""
    for name in MASK_NAMES:
        value = record.get(name)
        if value is None or isinstance(value, bytes) or (isinstance(value, Mapping) and "bytes" in value):
            continue
        value = structured(value, name)
        if isinstance(value, Mapping) and "counts" in value and "size" in value:
            return _of_runs(value, name)
        if isinstance(value, list) and value:
            if all(isinstance(each, Mapping) and "counts" in each for each in value):
                hulls = [each for each in (_of_runs(one, name) for one in value) if each]
                return _around([edge for hull in hulls for edge in hull]) if hulls else None
            return _around(_flat(plain(value), name))
    return None


def _flat(value: Any, name: str) -> list[float]:
    """The numbers x, y, x, y ... of polygons, however deep they are nested; points may have names."""
    if isinstance(value, Mapping):
        return [float(value["x"]), float(value["y"])] if {"x", "y"} <= value.keys() else []
    if isinstance(value, (list, tuple)):
        return [number for each in value for number in _flat(each, name)]
    try:
        return [float(value)]
    except (TypeError, ValueError):
        raise RowError(f"bad {name}", found=value, expected="numbers of a polygon, or run lengths") from None


def _around(numbers: Sequence[float]) -> tuple[float, float, float, float] | None:
    if len(numbers) < 4:
        return None
    xs, ys = numbers[::2], numbers[1::2]
    return min(xs), min(ys), max(xs), max(ys)


def _of_runs(mask: Mapping[str, Any], name: str) -> tuple[float, float, float, float] | None:
    """Of run lengths, column by column, first those outside."""
    size, counts = structured(mask["size"], name), mask["counts"]
    if isinstance(counts, bytes):
        counts = counts.decode("latin-1")
    runs = np.array(_decompress(counts) if isinstance(counts, str) else counts, dtype=np.int64)
    height, width = (int(each) for each in size)
    if runs.min(initial=0) < 0 or runs.sum() != height * width:
        found, expected = f"{runs.sum()} pixels", f"{height * width} of a mask of {width} x {height}"
        raise RowError(f"bad {name}", found=found, expected=expected)
    ends = runs.cumsum()
    starts, ends = ends[:-1:2], ends[1::2]
    starts, ends = starts[ends > starts], ends[ends > starts]
    if not len(ends):
        return None
    # A run over the end of a column reaches both edges.
    first, last = starts // height, (ends - 1) // height
    over = bool((last > first).any())
    top = 0 if over else int((starts % height).min())
    bottom = height if over else int(((ends - 1) % height).max()) + 1
    return float(first.min()), float(top), float(last.max()) + 1, float(bottom)


def _decompress(text: str) -> list[int]:
    """COCO's compressed run lengths: 5 bits a character, least first; from the third on differences to the one two
    before (`rleFrString` of its API)."""
    runs: list[int] = []
    place = 0
    while place < len(text):
        value = shift = 0
        more = True
        while more:
            if place >= len(text):
                raise RowError("a mask is cut", found=text[-20:], expected="complete run lengths")
            bits = ord(text[place]) - 48
            value |= (bits & 0x1F) << (5 * shift)
            more = bool(bits & 0x20)
            place, shift = place + 1, shift + 1
            if not more and bits & 0x10:
                value |= -1 << (5 * shift)
        if len(runs) > 2:
            value += runs[-2]
        runs.append(value)
    return runs

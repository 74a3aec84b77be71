# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The box x1, y1, x2, y2 around points, which may be turned."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


def around(
    points: Iterable[Sequence[float]],
    degrees: float = 0,
    pivot: Sequence[float] | None = None,
    size: Sequence[float] | None = None,
) -> list[float]:
    """The box around points. Those that are turned about their middle or `pivot` are cut at the edge of a picture of
    this size, which their box may leave where the thing itself does not."""
    corners = np.array([*points], dtype=np.float64)  # (P, 2)
    if degrees:
        cos = np.cos(np.radians(degrees))
        sin = np.sin(np.radians(degrees))
        middle = corners.mean(axis=0) if pivot is None else np.array(pivot)
        corners = np.clip((corners - middle) @ [[cos, sin], [-sin, cos]] + middle, 0, size)
    return [*map(float, corners.min(axis=0)), *map(float, corners.max(axis=0))]


def hull(numbers: Sequence[Any]) -> list[float]:
    """The box around corners x, y, x, y ..."""
    return around(zip(numbers[::2], numbers[1::2], strict=True))


def corners_of(x: float, y: float, width: float, height: float) -> list[tuple[float, float]]:
    """The corners of an upright rectangle."""
    return [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]

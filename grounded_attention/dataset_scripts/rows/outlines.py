# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The box around an outline: points, a turned rectangle, an ellipse. All are x1, y1, x2, y2."""

import math
from collections.abc import Iterable, Sequence


def around(points: Iterable[Sequence[float]]) -> list[float]:
    """The box around points."""
    across, down = zip(*points, strict=True)
    return [min(across), min(down), max(across), max(down)]


def around_ellipse(x: float, y: float, across: float, down: float, degrees: float = 0) -> list[float]:
    """The box around an ellipse that is turned about its middle."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    half_width, half_height = math.hypot(across * cos, down * sin), math.hypot(across * sin, down * cos)
    return [x - half_width, y - half_height, x + half_width, y + half_height]


def around_turned(
    box: Sequence[float], degrees: float, size: Sequence[float], pivot: Sequence[float] | None = None
) -> list[float]:
    """The box around a rectangle that is turned about its middle, or `pivot`, and cut at the edge of a picture of
    this size, which it may leave where the thing itself does not."""
    if not degrees:
        return [*box]
    x1, y1, x2, y2 = box
    x, y = pivot or ((x1 + x2) / 2, (y1 + y2) / 2)
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    corners = [(a - x, b - y) for a in (x1, x2) for b in (y1, y2)]
    turned = around((x + a * cos - b * sin, y + a * sin + b * cos) for a, b in corners)
    return [min(max(side, 0.0), end) for side, end in zip(turned, (*size, *size), strict=True)]

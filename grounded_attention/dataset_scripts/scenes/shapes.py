# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Geometry of the scenes' objects: every shape is a few filled polygons, which also determine its box."""

import math
from collections.abc import Callable
from functools import cache, lru_cache

from .world import SceneObject

Point = tuple[float, float]
# Corners in units of the object's half extent (y points down) and the face's lightness; 0 cuts a hole.
Face = tuple[tuple[Point, ...], float]


def faces(item: SceneObject) -> list[Face]:
    """Returns the faces of an object in image pixels, from back to front."""
    cosine, sine = math.cos(math.radians(item.tilt)), math.sin(math.radians(item.tilt))
    return [
        (
            tuple(
                (
                    item.x + item.radius * (cosine * x - sine * y),
                    item.y + item.radius * (sine * x + cosine * y),
                )
                for x, y in corners
            ),
            lightness,
        )
        for corners, lightness in unit_faces(item.shapes)
    ]


@lru_cache(maxsize=1000)
def box(item: SceneObject) -> tuple[float, float, float, float]:
    """Returns the tight box (x1, y1, x2, y2) of an object in image pixels."""
    xs, ys = zip(*(point for corners, _ in faces(item) for point in corners), strict=True)
    return min(xs), min(ys), max(xs), max(ys)


@cache
def unit_faces(shapes: tuple[str, ...]) -> tuple[Face, ...]:
    """Returns the faces of a shape, or of the shape between two, in units of its half extent."""
    return tuple(_SHAPES[shapes]())


def _ellipse(x: float, y: float, rx: float, ry: float, steps: int = 40) -> tuple[Point, ...]:
    turns = [2 * math.pi * step / steps for step in range(steps)]
    return tuple((x + rx * math.cos(turn), y + ry * math.sin(turn)) for turn in turns)


def _spikes(count: int, inner: float) -> tuple[Point, ...]:
    radii = [1.0 if k % 2 == 0 else inner for k in range(2 * count)]
    turns = [math.pi * k / count - math.pi / 2 for k in range(2 * count)]
    return tuple((r * math.cos(turn), r * math.sin(turn)) for r, turn in zip(radii, turns, strict=True))


def _ball() -> list[Face]:
    return [
        (_ellipse(0, 0, 1, 1), 0.92),
        (_ellipse(-0.08, -0.08, 0.84, 0.84), 1.0),
        (_ellipse(-0.35, -0.38, 0.26, 0.22), 1.4),
    ]


def _cube() -> list[Face]:
    return [
        (((-1, -0.5), (0.5, -0.5), (0.5, 1), (-1, 1)), 1.0),
        (((-1, -0.5), (-0.5, -1), (1, -1), (0.5, -0.5)), 1.3),
        (((0.5, -0.5), (1, -1), (1, 0.5), (0.5, 1)), 0.7),
    ]


def _frustum(top: float, bottom: float) -> list[Face]:
    """Returns a round solid that narrows from `bottom` to `top`: a cone, a cylinder or a shape between them."""
    sides: tuple[Point, ...] = ((-top, -0.8), (top, -0.8), (bottom, 0.76), (-bottom, 0.76))
    shade: tuple[Point, ...] = ((top * 0.3, -0.8), (top, -0.8), (bottom, 0.76), (bottom * 0.3, 0.95))
    return [(_ellipse(0, 0.76, bottom, 0.24), 1.0), (sides, 1.0), (shade, 0.8), (_ellipse(0, -0.8, top, 0.2), 1.3)]


def _cross() -> list[Face]:
    quarter = ((0.33, -1.0), (0.33, -0.33), (1.0, -0.33))
    points: list[Point] = []
    for turn in range(4):
        cosine, sine = round(math.cos(turn * math.pi / 2)), round(math.sin(turn * math.pi / 2))
        points += [(cosine * x - sine * y, sine * x + cosine * y) for x, y in quarter]
    return [(tuple(points), 1.0)]


def _heart() -> list[Face]:
    turns = [2 * math.pi * step / 48 for step in range(48)]
    outline = [
        (
            math.sin(t) ** 3,
            -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 17 + 0.1,
        )
        for t in turns
    ]
    return [(tuple(outline), 1.0)]


_SHAPES: dict[tuple[str, ...], Callable[[], list[Face]]] = {
    ("ball",): _ball,
    ("cube",): _cube,
    ("cone",): lambda: _frustum(0.03, 0.9),
    ("cylinder",): lambda: _frustum(0.7, 0.7),
    ("cone", "cylinder"): lambda: _frustum(0.36, 0.8),
    ("star",): lambda: [(_spikes(5, 0.42), 1.0)],
    ("cross",): _cross,
    ("star", "cross"): lambda: [(_spikes(4, 0.42), 1.0)],
    ("ring",): lambda: [(_ellipse(0, 0, 1, 1), 1.0), (_ellipse(0, 0, 0.52, 0.52), 0.0)],
    ("heart",): _heart,
}

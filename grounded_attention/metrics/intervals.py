# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Formats intervals. Both ends are NaN for a single image, which gives no information about other images."""

import json
import math
from typing import Any

Interval = tuple[float, float]


def interval_text(interval: Interval, form: str = ".1%") -> str:
    """The two ends in a number format, or the reason why there is no interval."""
    low, high = interval
    if low is None or math.isnan(low):
        return "no interval: too few images"
    return f"{low:{form}} to {high:{form}}"


def to_json(value: Any, indent: int | None = None) -> str:
    """Writes JSON with null for NaN and infinities; Python would write what is not valid JSON."""
    return json.dumps(_defined(value), indent=indent, allow_nan=False)


def _defined(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _defined(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_defined(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

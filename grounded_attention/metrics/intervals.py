# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How the ends of an interval are written. Both are NaN where one image alone was seen: it says nothing of others."""

import json
import math
from typing import Any

Interval = tuple[float, float]


def interval_text(interval: Interval, form: str = ".1%") -> str:
    """The two ends in a format of numbers, or why there are none."""
    low, high = interval
    return "no interval: one image" if math.isnan(low) else f"{low:{form}} to {high:{form}}"


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON with null for a number that is not defined; Python's own would write NaN, which is no JSON."""
    return json.dumps(_defined(value), indent=indent, allow_nan=False)


def _defined(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _defined(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_defined(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value

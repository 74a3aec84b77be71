# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The source of region features, as a processor stores it: a model understands only the features of its training."""

from collections.abc import Mapping
from typing import Any


def feature_source(provenance: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Identifies the extractor of region features."""
    known = provenance or {}
    features = known.get("features")
    if isinstance(features, Mapping) and features.get("name"):
        return {key: str(features[key]) for key in ("name", "weights") if features.get(key)}
    detector = known.get("detector")
    name = detector if isinstance(detector, str) else known.get("source")
    if isinstance(name, str) and name:
        return {"name": name}
    return None


def feature_mismatch(source: Mapping[str, str] | None, trained_on: Mapping[str, str] | None) -> str | None:
    """Compares the source of features with that of training."""
    if source is None or trained_on is None:
        return None
    if any(source.get(key) and source.get(key) == trained_on.get(key) for key in ("name", "weights")):
        return None
    return (
        f"the features are those of {source.get('name')!r}, but the model was trained on those of "
        f"{trained_on.get('name')!r}: its attention is not meaningful"
    )

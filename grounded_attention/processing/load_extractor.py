# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Makes a region extractor from names: a detector or known boxes, and a feature model."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..utils.named_types import Columns
from .region_detection import BoxSource, GivenBoxes, load_detector
from .region_extraction import RegionExtractor, load_feature_processor


def load_extractor(
    boxes: str | BoxSource | Mapping[str, Columns],
    features: Any = None,
    features_name: str = "",
    queries: Sequence[str] | None = None,
    device: str | torch.device = "cpu",
    **options: Any,
) -> RegionExtractor:
    """Makes an extractor that finds the regions of images and, with a feature model, computes their features."""
    feature_processor = getattr(features, "image_processor", None)
    if features is not None and feature_processor is None:
        feature_processor = load_feature_processor(features_name)
    if isinstance(boxes, str):
        source: BoxSource = load_detector(boxes, queries, device=device)
    elif queries:
        raise ValueError("queries are given with a detector that is already loaded; give them when loading it.")
    else:
        source = GivenBoxes(boxes) if isinstance(boxes, Mapping) else boxes
    name = features_name or getattr(features, "name", "")
    return RegionExtractor(source, features, feature_processor, features_name=name, **options)

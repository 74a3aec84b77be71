# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Makes a region extractor from names: a detector or known boxes, and a feature model."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .feature_pixels import load_feature_processor
from .region_detection import BoxSource, GivenBoxes, load_detector
from .region_extraction import RegionExtractor


def load_extractor(
    boxes: str | BoxSource | Mapping[str, Mapping[str, Any]],
    features: Any = None,
    features_name: str = "",
    queries: Sequence[str] | None = None,
    device: str | torch.device = "cpu",
    **options: Any,
) -> RegionExtractor:
    """Makes an extractor that finds the regions of images and, with a feature model, computes their features.

    Args:
        boxes (`str`, `BoxSource` or `Mapping`): A detector of transformers by name or folder, a [`BoxSource`], or
            known boxes, see [`GivenBoxes`].
        features (*optional*): A region-feature model, see [`RegionExtractor`].
        features_name (`str`, *optional*): The name or folder of the model, which also has its image processor. A model
            with the attributes `image_processor` and `name` needs none.
        queries (sequence of `str`, *optional*): The queries of a zero-shot detector that `boxes` names.
        device (`str` or `torch.device`, *optional*, defaults to `"cpu"`): The device of a detector that `boxes` names.
        options: Options of [`RegionExtractor`], such as `max_regions`.

    Returns:
        `RegionExtractor`: The extractor.

    Raises:
        ValueError: A detector or an image processor cannot be used, or the queries do not fit.
    """
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


__all__ = ["load_extractor"]

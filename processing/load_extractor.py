# Copyright 2026 The grounded-attention authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""A region extractor from names: detector or known boxes, and a feature model."""

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
    """What finds the regions of images and, with a feature model, computes their features.

    Args:
        boxes: a detector of transformers by name or folder, a [`BoxSource`], or known boxes, see [`GivenBoxes`].
        features: a region-feature model, see [`RegionExtractor`].
        features_name: the name or folder it was loaded from, where its image processor is found too. A model that
            has an `image_processor` and a `name` of its own needs none.
        queries: what a zero-shot detector named by `boxes` looks for.
        device: where a detector named by `boxes` computes.
        options: those of [`RegionExtractor`], such as `max_regions`.

    Raises:
        ValueError: a detector or an image processor that cannot be used, or queries that do not fit.
    """
    feature_processor = getattr(features, "image_processor", None)
    if features is not None and feature_processor is None:
        feature_processor = load_feature_processor(features_name)
    if isinstance(boxes, str):
        source: BoxSource = load_detector(boxes, queries, device=device)
    elif queries:
        raise ValueError("queries are given beside a detector that is loaded already; it has its own.")
    else:
        source = GivenBoxes(boxes) if isinstance(boxes, Mapping) else boxes
    name = features_name or getattr(features, "name", "")
    return RegionExtractor(source, features, feature_processor, features_name=name, **options)


__all__ = ["load_extractor"]

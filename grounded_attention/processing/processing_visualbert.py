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
"""Processor of VisualBERT: converts texts, regions, and labelled phrases to model inputs."""

from ..utils.named_types import Columns
from .number_arrays import Arrays

from .oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from transformers.utils import auto_docstring

# Imports of the file above: transformers 5.4 copies only files that are named here, and this file, from a checkpoint.
from ..utils.boxes import IOU_THRESHOLD
from .processing_grounded import GroundedProcessor
from .region_columns import RegionColumns
from .text_tags import aligned_tokens


@auto_docstring(
    custom_intro="""
    Converts words and image regions to the inputs of VisualBERT: the text, then the regions of one image or of two.
    There is no region for the whole image.
    """
)
class VisualBERTProcessor(GroundedProcessor):
    whole_image: ClassVar[bool] = False
    images_per_example: ClassVar[int] = 2
    answer_layout: ClassVar[str] = "question_mask"
    tag_input: ClassVar[str | None] = "image_text_alignment"
    read_tags = staticmethod(aligned_tokens)

    def __init__(
        self,
        tokenizer: Any,
        max_regions: int = 100,
        region_feature_size: int = 2048,
        iou_threshold: float = IOU_THRESHOLD,
        spatial_features: bool = False,
        region_feature_source: Mapping[str, str] | None = None,
    ) -> None:
        r"""
        max_regions (`int`, *optional*, defaults to 100):
            Number of regions that an image keeps. Without `region_scores` the first ones stay, so sort regions by the
            detector's confidence.
        region_feature_size (`int`, *optional*, defaults to 2048):
            Width of the given region features.
        iou_threshold (`float`, *optional*, defaults to 0.5):
            A region belongs to a phrase if its intersection over union with one of the phrase's gold boxes is at
            least this; above 0, at most 1.
        spatial_features (`bool`, *optional*, defaults to `False`):
            Append each region's box to its feature: x1, y1, x2, y2, width and height, divided by those of the image
            (public code, Flickr30K Entities). The model's `region_feature_size` is then larger by 6.
        region_feature_source (`dict[str, str]`, *optional*):
            The source of the region features in training: `name` and, if known, `weights`, a hash of the extractor's
            weights. Training writes it; `None` means unknown.
        """
        super().__init__(
            tokenizer,
            max_regions=max_regions,
            region_feature_size=region_feature_size,
            iou_threshold=iou_threshold,
            region_feature_source=region_feature_source,
        )
        self._check_settings(spatial_features=spatial_features)
        self.spatial_features = spatial_features

    @property
    def model_feature_size(self) -> int:
        """Width of the region features that the model receives."""
        return self.region_feature_size + SPATIAL_SIZE * self.spatial_features

    def _family_input_names(self) -> list[str]:
        return ["region_token_type_ids", "image_text_alignment"]

    def _region_arrays(self, regions: RegionColumns, inputs: Columns) -> Arrays:
        arrays = dict(regions.arrays)
        if self.spatial_features and "region_features" in arrays:
            arrays["region_features"] = append_spatial_features(
                arrays["region_features"], arrays["region_boxes"], arrays["region_attention_mask"]
            )
        if inputs["region_image_indices"] is not None:
            arrays["region_token_type_ids"] = arrays["region_image"]
        return arrays


# x1, y1, x2, y2, width, height
SPATIAL_SIZE = 6


def append_spatial_features(features: np.ndarray, boxes: np.ndarray, attended: np.ndarray) -> np.ndarray:
    """Appends x1, y1, x2, y2, width and height of the normalised box to each feature."""
    sides = boxes[..., 2:] - boxes[..., :2]
    return np.concatenate((features, np.concatenate((boxes, sides), axis=-1) * attended[..., None]), axis=-1).astype(
        np.float32, copy=False
    )


__all__ = ["OLDEST_TRANSFORMERS", "VisualBERTProcessor"]

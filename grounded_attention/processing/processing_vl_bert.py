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
"""Processor of VL-BERT: converts texts, regions or images, and labelled phrases to model inputs."""

from .check_processor_transformers import OLDEST_TRANSFORMERS  # isort: skip

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from transformers.utils import auto_docstring

from .processing_grounded import GroundedProcessor
from .region_columns import RegionColumns
from .sequence_layouts import EncodedTexts, TextColumns
from .text_tags import token_regions

# Imports of the file above: transformers 5.4 copies only files that are named here, and this file, from a checkpoint.
from .batch_arguments import as_batch as as_batch  # isort: skip
from .feature_pixels import load_feature_processor as load_feature_processor  # isort: skip
from .feature_sources import feature_source as feature_source  # isort: skip
from .float32_copy import copy_as_float32 as copy_as_float32  # isort: skip
from .grounded_batch import GroundedBatch as GroundedBatch  # isort: skip
from .image_processing_fast_rcnn import FastRCNNImageProcessor as FastRCNNImageProcessor  # isort: skip
from .image_regions import read_images as read_images  # isort: skip
from .load_extractor import load_extractor as load_extractor  # isort: skip
from .number_arrays import to_array as to_array  # isort: skip
from .open_images import open_images as open_images  # isort: skip
from .phrase_grounding import ground_phrases as ground_phrases  # isort: skip
from .region_boxes import box_iou as box_iou  # isort: skip
from .region_detection import load_detector as load_detector  # isort: skip
from .region_extraction import RegionExtractor as RegionExtractor  # isort: skip
from .region_selection import select_regions as select_regions  # isort: skip
from .region_images import stack_image_indices as stack_image_indices  # isort: skip
from .sequence_lengths import fit_lengths as fit_lengths  # isort: skip


@auto_docstring(
    custom_intro="""
    Converts words and image regions to the inputs of VL-BERT. Region features are precomputed, computed by a detector
    during the call, or computed by the model from the pixels. The first region is the whole image.
    """
)
class VLBertProcessor(GroundedProcessor):
    whole_image: ClassVar[bool] = True
    answer_layout: ClassVar[str] = "masked_answer"

    def _family_input_names(self) -> list[str]:
        return ["token_regions"]

    def _tag_arrays(
        self,
        tags: Sequence[Any],
        texts: list[list[str]],
        encoded: EncodedTexts,
        columns: TextColumns,
        regions: RegionColumns,
    ) -> dict[str, np.ndarray]:
        return {"token_regions": token_regions(tags, texts, encoded, columns, regions)}


__all__ = ["OLDEST_TRANSFORMERS", "VLBertProcessor"]

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
"""Processors of the families with two streams, ViLBERT and LXMERT: text and regions are not one sequence."""

from ..utils.named_types import Columns
from .number_arrays import Arrays

from .oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip

from typing import ClassVar

from transformers.utils import auto_docstring

from .processing_grounded import GroundedProcessor
from .region_columns import RegionColumns


@auto_docstring(
    custom_intro="""
    Common part of the processors of families with two streams.
    """
)
class TwoStreamProcessor(GroundedProcessor):
    images_per_example: ClassVar[int] = 2
    one_sequence: ClassVar[bool] = False
    answer_layout: ClassVar[str] = "caption"

    def _family_input_names(self) -> list[str]:
        return ["region_token_type_ids"]

    def _region_arrays(self, regions: RegionColumns, inputs: Columns) -> Arrays:
        arrays = dict(regions.arrays)
        if inputs["region_image_indices"] is not None:
            arrays["region_token_type_ids"] = arrays["region_image"]
        return arrays


@auto_docstring(
    custom_intro="""
    Converts words and image regions to the inputs of ViLBERT. The first region is the whole image.
    """
)
class ViLBertProcessor(TwoStreamProcessor):
    whole_image: ClassVar[bool] = True


@auto_docstring(
    custom_intro="""
    Converts words and image regions to the inputs of LXMERT. There is no region for the whole image.
    """
)
class LXMERTProcessor(TwoStreamProcessor):
    whole_image: ClassVar[bool] = False


__all__ = ["OLDEST_TRANSFORMERS", "LXMERTProcessor", "TwoStreamProcessor", "ViLBertProcessor"]

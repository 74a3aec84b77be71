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

from .oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip

from typing import ClassVar

from transformers.utils import auto_docstring

from .processing_grounded import GroundedProcessor


@auto_docstring(
    custom_intro="""
    Converts words and image regions to the inputs of VL-BERT. Region features are precomputed, computed by a detector
    during the call, or computed by the model from the pixels. The first region is the whole image.
    """
)
class VLBertProcessor(GroundedProcessor):
    whole_image: ClassVar[bool] = True
    answer_layout: ClassVar[str] = "masked_answer"
    tag_input: ClassVar[str | None] = "token_regions"

    def _family_input_names(self) -> list[str]:
        return ["token_regions"]


__all__ = ["OLDEST_TRANSFORMERS", "VLBertProcessor"]

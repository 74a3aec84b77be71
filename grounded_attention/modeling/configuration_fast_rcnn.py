# Copyright 2026 The grounded-attention authors. All rights reserved.
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
"""Configuration of the region-feature network of VL-BERT"""

from ..processing.oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.utils import auto_docstring

from .task_config import make_auto_map

# The number of stages that compute the feature map; the last stage reads regions of the map.
_MAP_STAGES = 3


@auto_docstring(
    custom_intro="""
    Configuration of [`FastRCNNFeatures`], the ResNet that turns pixels and boxes into the region features of VL-BERT
    (https://huggingface.co/papers/1908.08530, section 4.1). The defaults are the public code's ResNet-101.
    """
)
@strict
class FastRCNNConfig(PreTrainedConfig):
    r"""
    hidden_sizes (`list[int]`, *optional*, defaults to `[256, 512, 1024, 2048]`):
        Output channels of the four stages; the last is the width of a region feature.
    depths (`list[int]`, *optional*, defaults to `[3, 4, 23, 3]`):
        Bottleneck blocks of the four stages: `[3, 4, 23, 3]` is ResNet-101, `[3, 4, 6, 3]` ResNet-50.
    stride_in_1x1 (`bool`, *optional*, defaults to `True`):
        Whether a stage halves the resolution in the first 1x1 convolution of its first block, as in the original
        (Caffe) ResNet, or in the 3x3 convolution, as in torchvision's ResNet.
    dilated_c5 (`bool`, *optional*, defaults to `True`):
        Whether the last stage keeps the resolution and dilates its 3x3 convolutions by 2 instead.
    roi_size (`int`, *optional*, defaults to 14):
        Height and width, in cells, of the RoIAlign output of a region.
    sampling_ratio (`int`, *optional*, defaults to 1):
        Samples along each side of such a cell.
    frozen_stages (`int`, *optional*, defaults to 2):
        Number of stages that are not trained. The stem is the first stage: 0 freezes nothing, 2 the stem and the stage
        of `hidden_sizes[0]`, 5 everything. Batch norm is always frozen.

    Raises:
        StrictDataclassFieldValidationError: if a field has the wrong type.
        StrictDataclassClassValidationError: if fields contradict each other; the message contains their names.

    Example:

    ```python
    >>> from grounded_attention import FastRCNNConfig, FastRCNNFeatures

    >>> resnet50 = FastRCNNConfig(depths=[3, 4, 6, 3])
    >>> model = FastRCNNFeatures(resnet50)
    ```"""

    model_type = "fast_rcnn"
    code_places = make_auto_map("fast_rcnn", "FastRCNNConfig", "FastRCNNFeatures")
    # Read by transformers' ResNet blocks.
    layer_type = "bottleneck"

    num_channels: int = 3
    embedding_size: int = 64
    hidden_sizes: list[int] | tuple[int, ...] = (256, 512, 1024, 2048)
    depths: list[int] | tuple[int, ...] = (3, 4, 23, 3)
    hidden_act: str = "relu"
    stride_in_1x1: bool = True
    dilated_c5: bool = True
    roi_size: int = 14
    sampling_ratio: int = 1
    frozen_stages: int = 2

    def __post_init__(self, **kwargs):
        self.hidden_sizes, self.depths = list(self.hidden_sizes), list(self.depths)
        # File names without the repository of the loaded config, so that a saved directory loads the code in it.
        kwargs["auto_map"] = {**(kwargs.get("auto_map") or {}), **self.code_places}
        super().__post_init__(**kwargs)

    @property
    def feature_size(self) -> int:
        """Width of a region feature."""
        return self.hidden_sizes[-1]

    @property
    def feature_stride(self) -> int:
        """Pixels between neighbouring cells of the feature map: 16."""
        return 4 * 2 ** (_MAP_STAGES - 1)

    def validate_architecture(self):
        """Part of `@strict`-powered validation. Validates that the fields fit together."""
        super().validate_architecture()
        for name in ("hidden_sizes", "depths"):
            values = getattr(self, name)
            if len(values) != _MAP_STAGES + 1 or min(values) < 1:
                raise ValueError(f"{name} must be {_MAP_STAGES + 1} positive numbers, one per stage, found {values}.")
        if any(size % 4 != 0 for size in self.hidden_sizes):
            raise ValueError(
                f"hidden_sizes must be multiples of 4, the bottleneck's factor, found {self.hidden_sizes}."
            )
        for name in ("num_channels", "embedding_size", "roi_size", "sampling_ratio"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, found {getattr(self, name)}.")
        if not 0 <= self.frozen_stages <= _MAP_STAGES + 2:
            raise ValueError(f"frozen_stages must be from 0 to {_MAP_STAGES + 2}, found {self.frozen_stages}.")


__all__ = ["OLDEST_TRANSFORMERS", "FastRCNNConfig"]

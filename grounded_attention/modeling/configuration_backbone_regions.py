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
"""Configuration of region features from any vision backbone"""

from ..utils.named_types import Fields

from ..processing.oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip


from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.utils import auto_docstring

from .task_config import make_auto_map


@auto_docstring(
    custom_intro="""
    Configuration of [`BackboneRegionFeatures`]. [`BackboneRegionFeatures.from_backbone`] makes it, and runs the
    backbone once to find the width and the stride.
    """
)
@strict
class BackboneRegionsConfig(PreTrainedConfig):
    r"""
    backbone_config (`PreTrainedConfig | dict`, *optional*):
        Configuration of a vision model of transformers.
    feature_size (`int`, *optional*):
        Width of a region feature: the channels of the backbone's last feature map. The model needs it.
    feature_stride (`int`, *optional*):
        Pixels between neighbouring cells of the feature map. The model needs it.
    roi_size (`int`, *optional*, defaults to 7):
        Height and width, in cells, of the RoIAlign output of a region.
    sampling_ratio (`int`, *optional*, defaults to 2):
        Samples along each side of such a cell.

    Raises:
        StrictDataclassFieldValidationError: if a field has the wrong type.
        StrictDataclassClassValidationError: if a number is not positive; the message contains its field.

    Example:

    ```python
    >>> from transformers import ResNetConfig

    >>> from grounded_attention import BackboneRegionFeatures, BackboneRegionsConfig

    >>> config = BackboneRegionsConfig(backbone_config=ResNetConfig(), feature_size=2048, feature_stride=32)
    >>> model = BackboneRegionFeatures(config)
    ```"""

    model_type = "backbone_regions"
    code_places = make_auto_map("backbone_regions", "BackboneRegionsConfig", "BackboneRegionFeatures")
    sub_configs = {"backbone_config": AutoConfig}

    backbone_config: Fields | PreTrainedConfig | None = None
    feature_size: int | None = None
    feature_stride: int | None = None
    roi_size: int = 7
    sampling_ratio: int = 2

    def __post_init__(self, **kwargs):
        if isinstance(self.backbone_config, dict):
            self.backbone_config = AutoConfig.for_model(**self.backbone_config)
        # File names without the repository of the loaded config, so that a saved directory loads the code in it.
        kwargs["auto_map"] = {**(kwargs.get("auto_map") or {}), **self.code_places}
        super().__post_init__(**kwargs)

    def validate_architecture(self):
        """Part of `@strict`-powered validation. Validates that sizes are positive."""
        super().validate_architecture()
        for name in ("feature_size", "feature_stride", "roi_size", "sampling_ratio"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be positive, found {value}.")


__all__ = ["OLDEST_TRANSFORMERS", "BackboneRegionsConfig"]

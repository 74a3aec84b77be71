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
"""VL-BERT model configuration"""

from ..processing.oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip

from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers.utils import auto_docstring

from .configuration_fast_rcnn import FastRCNNConfig
from .task_config import OneStreamConfig, PipelineEntry, RegionTargets, make_auto_map

# Every class that is saved with a checkpoint.
AUTO_MAP = make_auto_map(
    "vl_bert",
    "VLBertConfig",
    "VLBertModel",
    "VLBertForMultipleChoice",
    "VLBertForPreTraining",
    "VLBertForVisualQuestionAnswering",
    "VLBertForReferringExpression",
    "VLBertForVGP",
)

# Token type of regions and of the END element.
_REGION_TOKEN_TYPE = 2


@auto_docstring(
    custom_intro="""
    Configuration of the VL-BERT models (https://huggingface.co/papers/1908.08530). The defaults are the base model and
    match the public checkpoints. Where the paper differs from the public code, the description of the field has both.
    """
)
@strict
class VLBertConfig(PipelineEntry, OneStreamConfig):
    r"""
    position_offset (`int`, *optional*, defaults to 0):
        Added to every position id. 0 for BERT; 2 for weights that come from RoBERTa (`padding_idx + 1`).
    region_feature_size (`int`, *optional*, defaults to 2048):
        Width of the region features, given as inputs or computed by the pixel network of the model.
    region_classes (`int`, *optional*, defaults to 1601):
        Number of detector classes that the masked-region head predicts, background included.
    region_dropout (`float`, *optional*, defaults to 0.1):
        Dropout on region coordinates and features before their projection.
    coordinate_embedding (`str`, *optional*, defaults to `"center"`):
        The embedded coordinates of a box: `"center"`, centre, width and height (public code), or `"corner"`, the two
        corners (paper, section 3.2).
    coordinate_dim (`int`, *optional*, defaults to 256):
        Wavelengths per coordinate; the embedding of a box is `8 * coordinate_dim` wide.
    vision_config (`FastRCNNConfig` or `dict`, *optional*):
        The pixel network, trained end to end with the model. The model then takes images. Without it the model takes
        region features.
    region_masking (`str`, *optional*, defaults to `"feature"`):
        How a region is hidden in pre-training: `"feature"` replaces its feature by a learned embedding (paper; public
        checkpoints on precomputed features), `"pixels"` blanks its box in the image before the pixel network reads it
        (public end-to-end checkpoints). `"pixels"` needs `vision_config`.
    visual_size (`int`, *optional*):
        Width of the visual embeddings; `hidden_size` when not given. A different width adds a projection.
    visual_norm (`bool`, *optional*, defaults to `True`):
        `True` passes visual embeddings through a LayerNorm before they join the sequence, `False` multiplies them by a
        learned scalar.
    visual_scale_text_init (`float`, *optional*, defaults to 0.0):
        Initial scale of the visual embeddings of text elements. With 0, a model from BERT weights first computes the
        same as BERT.
    visual_scale_region_init (`float`, *optional*, defaults to 0.0):
        Initial scale of the visual embeddings of regions.
    use_pooler (`bool`, *optional*, defaults to `True`):
        Whether `VLBertModel` has a pooler. Task classes set this field: [`VLBertForMultipleChoice`], and
        [`VLBertForVGP`] with `identification_pooling="pooled"`, have a pooler; [`VLBertForVisualQuestionAnswering`]
        and [`VLBertForReferringExpression`] do not.
    relationship_head (`bool`, *optional*, defaults to `False`):
        Whether [`VLBertForPreTraining`] predicts if the caption belongs to the image (off in the public checkpoints).
    answer_head (`str`, *optional*, defaults to `"mlm"`):
        The head of [`VLBertForVisualQuestionAnswering`]: `"mlm"`, the transform of the masked-word head and a linear
        layer (public configuration), `"1fc"`, one linear layer, or `"2fc"`, two linear layers. The answers are the
        values of `id2label`; `answers=[...]` sets them.
    answer_hidden_size (`int`, *optional*):
        Hidden size of a `"2fc"` answer head; `hidden_size` when not given.
    choice_hidden_size (`int`, *optional*):
        Hidden size of the head of [`VLBertForMultipleChoice`]; a single linear layer when not given.
    choice_region_classes (`int`, *optional*, defaults to 81):
        Number of object classes that [`VLBertForMultipleChoice`] predicts for every region: 0 is the whole image, 1 to
        80 are the classes of COCO (public code). `None` removes this head.

    Raises:
        StrictDataclassFieldValidationError: if a field has the wrong type or an unknown choice.
        StrictDataclassClassValidationError: if fields contradict each other; the message contains their names.

    Example:

    ```python
    >>> from grounded_attention import VLBertConfig, VLBertModel

    >>> configuration = VLBertConfig(num_hidden_layers=2)
    >>> model = VLBertModel(configuration)
    >>> large = VLBertConfig.large()
    ```"""

    model_type = "vl_bert"
    sub_configs = {"vision_config": FastRCNNConfig}
    code_places = AUTO_MAP
    signed_fields = ("visual_scale_text_init", "visual_scale_region_init")

    type_vocab_size: int = 3
    position_offset: int = 0

    region_feature_size: int = 2048
    region_classes: int = 1601
    region_dropout: float | int = 0.1
    coordinate_embedding: Literal["center", "corner"] = "center"
    coordinate_dim: int = 256
    vision_config: FastRCNNConfig | dict | None = None
    region_masking: Literal["feature", "pixels"] = "feature"
    visual_size: int | None = None
    visual_norm: bool = True
    visual_scale_text_init: float | int = 0.0
    visual_scale_region_init: float | int = 0.0

    use_pooler: bool = True
    relationship_head: bool = False
    answer_head: Literal["mlm", "1fc", "2fc"] = "mlm"
    answer_hidden_size: int | None = None
    choice_hidden_size: int | None = None
    choice_region_classes: int | None = 81

    def __post_init__(self, **kwargs):
        if self.visual_size is None:
            self.visual_size = self.hidden_size
        if isinstance(self.vision_config, dict):
            self.vision_config = FastRCNNConfig(**self.vision_config)
        super().__post_init__(**kwargs)

    @classmethod
    def large(cls, **overrides) -> "VLBertConfig":
        """VL-BERT large: 24 layers, 16 heads, width 1024 (VL-BERT public configuration); `overrides` set fields."""
        sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
        return cls(**{**sizes, **overrides})

    @property
    def answer_width(self) -> int | None:
        """Hidden size of the answer head; `None` if it has a single layer."""
        if self.answer_head == "2fc":
            return self.answer_hidden_size or self.hidden_size
        return None

    @property
    def region_targets(self) -> RegionTargets:
        """What the model predicts of masked regions: their classes."""
        return RegionTargets()

    @property
    def visual_width(self) -> int:
        """`visual_size`, or `hidden_size` if `visual_size` is not given."""
        if self.visual_size is None:
            return self.hidden_size
        return self.visual_size

    @property
    def max_text_length(self) -> int:
        """Number of positions for text, without the shared position of the regions and that of END."""
        return self.max_position_embeddings - self.position_offset - 2

    def validate_architecture(self):
        """Part of `@strict`-powered validation. Validates that the fields fit together."""
        super().validate_architecture()
        if self.type_vocab_size <= _REGION_TOKEN_TYPE:
            raise ValueError(
                f"type_vocab_size ({self.type_vocab_size}) must be at least {_REGION_TOKEN_TYPE + 1}: "
                f"regions and END have token type {_REGION_TOKEN_TYPE}."
            )
        if self.max_text_length < 1:
            raise ValueError(
                f"max_position_embeddings ({self.max_position_embeddings}) is too small for text: position_offset "
                f"({self.position_offset}), the regions and END take {self.position_offset + 2} positions."
            )
        if self.region_masking == "pixels" and self.vision_config is None:
            raise ValueError('region_masking "pixels" needs vision_config: without it there are no pixels to hide.')
        if isinstance(self.vision_config, FastRCNNConfig):
            if self.vision_config.feature_size != self.region_feature_size:
                raise ValueError(
                    f"region_feature_size ({self.region_feature_size}) must equal the feature width of the pixel "
                    f"network in vision_config ({self.vision_config.feature_size})."
                )


__all__ = ["OLDEST_TRANSFORMERS", "VLBertConfig"]

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
"""Region features from any vision backbone of transformers.

Shape letters: B batch, R regions, K regions without padding, C channels, h and w cells of the feature map.
"""

from ..processing.oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoBackbone, AutoConfig, AutoModel, PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING
from transformers.utils import auto_docstring
from transformers.utils.generic import can_return_tuple

from .configuration_backbone_regions import BackboneRegionsConfig
from .modeling_fast_rcnn import FastRCNNOutput, features_of_regions
from .roi_align import roi_align

# Side of the image for the trial run of a backbone whose configuration has no image size.
_TRIAL_SIZE = 224


@auto_docstring
class BackboneRegionsPreTrainedModel(PreTrainedModel):
    config: BackboneRegionsConfig
    base_model_prefix = "backbone_regions"
    main_input_name = "pixel_values"
    input_modalities = ["image"]
    # The backbone inside checks which attention back ends it supports.
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True


@auto_docstring(
    custom_intro="""
    Region features from any vision backbone of transformers: the mean of the RoIAlign output of each region, from the
    last feature map or from the grid of patches.

    The centre of a cell is the centre of the pixels that it covers. Boxes are therefore shifted by half a cell (the
    "aligned" form of later Mask R-CNN implementations), unlike in [`FastRCNNFeatures`].
    """
)
class BackboneRegionFeatures(BackboneRegionsPreTrainedModel):
    def __init__(self, config: BackboneRegionsConfig):
        super().__init__(config)
        if config.backbone_config is None or config.feature_size is None or config.feature_stride is None:
            raise ValueError(
                "backbone_config, feature_size and feature_stride must all be given; use "
                "BackboneRegionFeatures.from_backbone to find them."
            )
        self.feature_stride = config.feature_stride
        self.backbone = _choose_auto_class(config.backbone_config).from_config(config.backbone_config)
        self.supports_gradient_checkpointing = self.backbone.supports_gradient_checkpointing

        # Initialize weights and apply final processing
        self.post_init()

    @classmethod
    def from_backbone(
        cls, pretrained_model_name_or_path: str, roi_size: int = 7, sampling_ratio: int = 2, **kwargs
    ) -> "BackboneRegionFeatures":
        """
        Wraps a pretrained vision model, and runs it once on an empty image to find the width and the stride.

        Args:
            pretrained_model_name_or_path (`str`): directory or Hub id of a vision model of transformers, or of a model
                of images and texts that contains one (CLIP, SigLIP).
            roi_size (`int`, *optional*, defaults to 7): cells along each side of a region; the feature is their mean.
            sampling_ratio (`int`, *optional*, defaults to 2): samples along each side of such a cell.
            kwargs: arguments of `from_pretrained`, such as `dtype` or `revision`.

        Returns:
            [`BackboneRegionFeatures`]: the model, in evaluation mode.

        Raises:
            ValueError: if the model does not read images or does not compute a feature map, or the checkpoint lacks
                some of its weights.
        """
        where = {name: kwargs[name] for name in ("revision", "token", "cache_dir", "subfolder") if name in kwargs}
        backbone_config = AutoConfig.from_pretrained(pretrained_model_name_or_path, **where)
        backbone_config = getattr(backbone_config, "vision_config", None) or backbone_config
        _check_reads_images(backbone_config, pretrained_model_name_or_path)
        backbone, info = _choose_auto_class(backbone_config).from_pretrained(
            pretrained_model_name_or_path, config=backbone_config, output_loading_info=True, **kwargs
        )
        # The pooler is not used here, and many checkpoints do not have one.
        missing = sorted(name for name in info["missing_keys"] if "pooler" not in name)
        if missing:
            raise ValueError(
                f"{pretrained_model_name_or_path} has no weights for {missing[0]} ({len(missing)} are missing), so "
                "they would be random. Expected a complete checkpoint of a vision model."
            )
        feature_size, feature_stride = _measure(backbone, pretrained_model_name_or_path)
        config = BackboneRegionsConfig(
            backbone_config=backbone_config,
            feature_size=feature_size,
            feature_stride=feature_stride,
            roi_size=roi_size,
            sampling_ratio=sampling_ratio,
        )
        with torch.device("meta"):
            model = cls(config)
        model.backbone = backbone
        return model.eval()

    def get_feature_map(self, pixel_values: Tensor) -> Tensor:
        """
        Computes the feature map from which regions are read.

        Args:
            pixel_values (`torch.Tensor` of shape `(B, 3, H, W)`): images. They are padded with zeros to whole cells.

        Returns:
            `torch.Tensor` of shape `(B, feature_size, h, w)` with a cell every `feature_stride` pixels.
        """
        stride = self.feature_stride
        height, width = pixel_values.shape[-2:]
        pixel_values = nn.functional.pad(pixel_values, (0, -width % stride, 0, -height % stride))
        return _to_map(_run(self.backbone, pixel_values), self.backbone.config, pixel_values, stride)

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        pixel_values: Tensor,
        region_boxes: Tensor,
        region_attention_mask: Tensor | None = None,
        **kwargs,
    ) -> FastRCNNOutput:
        r"""
        pixel_values (`torch.FloatTensor` of shape `(batch_size, 3, height, width)`):
            Images normalised by the backbone's image processor, padded at the right and the bottom. A backbone with
            attention attends to the padding.
        region_boxes (`torch.FloatTensor` of shape `(batch_size, num_regions, 4)`):
            Corners `(x1, y1, x2, y2)` in pixels of `pixel_values`.
        region_attention_mask (`torch.LongTensor` of shape `(batch_size, num_regions)`, *optional*):
            1 for regions, 0 for padding.

        Raises:
            ValueError: if boxes do not fit the images, or are not finite.
        """
        return features_of_regions(self, pixel_values, region_boxes, region_attention_mask)

    def get_region_features(self, feature_map: Tensor, boxes: Tensor, batch_index: Tensor) -> Tensor:
        """
        Computes the features of regions from a feature map.

        Args:
            feature_map (`torch.Tensor` of shape `(B, C, h, w)`): from `get_feature_map`.
            boxes (`torch.Tensor` of shape `(K, 4)`): `(x1, y1, x2, y2)` in pixels.
            batch_index (`torch.LongTensor` of shape `(K,)`): the image of each box.

        Returns:
            `torch.Tensor` of shape `(K, feature_size)`.
        """
        stride = self.feature_stride
        sizes = (self.config.roi_size, 1 / stride, self.config.sampling_ratio)
        return roi_align(feature_map, boxes - stride / 2, batch_index, *sizes).mean(dim=(2, 3))


def _choose_auto_class(config: Any) -> Any:
    """`AutoModel` for complete models, which include the last norm; `AutoBackbone` for the other configurations."""
    if type(config) in MODEL_MAPPING:
        return AutoModel
    return AutoBackbone


def _check_reads_images(config: PreTrainedConfig, name: str) -> None:
    """Raises `ValueError` for a text model, before its weights are loaded."""
    if type(config) not in MODEL_MAPPING:
        return
    model: Any = MODEL_MAPPING[type(config)]
    main_input = (model[0] if isinstance(model, tuple) else model).main_input_name
    if main_input != "pixel_values":
        raise ValueError(
            f"{name}: a {config.model_type} model reads {main_input}, not images. Expected a vision model, such as a "
            "ResNet or a ViT."
        )


def _run(backbone: Any, pixel_values: Tensor) -> Tensor:
    """The last feature map (B, C, h, w) or the tokens (B, n, C) of a backbone."""
    options = {}
    if "interpolate_pos_encoding" in inspect.signature(backbone.forward).parameters:
        options["interpolate_pos_encoding"] = True
    outputs = backbone(pixel_values=pixel_values.to(backbone.dtype), **options)
    maps = getattr(outputs, "feature_maps", None)
    if maps:
        return maps[-1]
    return outputs.last_hidden_state


def _to_map(states: Tensor, config: PreTrainedConfig, pixel_values: Tensor, stride: int) -> Tensor:
    """Converts tokens to a map (B, C, h, w), without the tokens before the patches. Returns a map unchanged."""
    if states.dim() == 4:
        return states
    height, width = (size // stride for size in pixel_values.shape[-2:])
    extra = states.shape[1] - height * width
    if extra not in _list_extra_tokens(config):
        raise ValueError(
            f"a {config.model_type} model makes {states.shape[1]} tokens of {height} x {width} patches; expected one "
            "token per patch and, before them, a class token or registers."
        )
    return states[:, extra:].transpose(1, 2).unflatten(2, (height, width))


def _list_extra_tokens(config: PreTrainedConfig) -> set[int]:
    """The possible numbers of tokens before the patches: class token, distillation token (DeiT), registers."""
    return {0, 1, 2, 1 + getattr(config, "num_register_tokens", 0)}


@torch.no_grad()
def _measure(backbone: Any, name: str) -> tuple[int, int]:
    """Channels and stride of a backbone's map, measured on one empty square image."""
    config = backbone.config
    size = getattr(config, "image_size", None) or _TRIAL_SIZE
    side = size if isinstance(size, int) else max(size)
    image = torch.zeros(1, getattr(config, "num_channels", 3), side, side, device=backbone.device)
    try:
        states = _run(backbone, image)
    except Exception as error:  # any error of a model that needs more than an image
        raise ValueError(f"{name}: a {config.model_type} model cannot be run on an image alone: {error}") from error
    stride = _find_stride(states, config, side)
    if stride is None:
        raise ValueError(
            f"{name}: a {config.model_type} model returns states of the shape {tuple(states.shape)} for an image of "
            f"{side} x {side} pixels; expected a map (1, channels, h, h) or one token per patch."
        )
    return states.shape[1 if states.dim() == 4 else 2], stride


def _find_stride(states: Tensor, config: PreTrainedConfig, side: int) -> int | None:
    if states.dim() == 4:
        height, width = states.shape[-2:]
        if height == width:
            return round(side / height)
        return None
    patch = getattr(config, "patch_size", None)
    if isinstance(patch, (list, tuple)):
        patch = patch[0]
    if states.dim() != 3 or not isinstance(patch, int):
        return None
    # Models with several stages halve the grid of patches between the stages.
    strides = [patch * 2**halvings for halvings in range(6)]
    counts = {stride: states.shape[1] - (side // stride) ** 2 for stride in strides if stride <= side}
    return next((stride for stride, extra in counts.items() if extra in _list_extra_tokens(config)), None)


__all__ = ["OLDEST_TRANSFORMERS", "BackboneRegionFeatures", "BackboneRegionsPreTrainedModel"]

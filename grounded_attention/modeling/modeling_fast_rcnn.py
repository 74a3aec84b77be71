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
"""PyTorch model of the region-feature network of VL-BERT.

Shape letters: B batch, R regions, K regions without padding, C channels, h and w cells of the feature map, S cells
along a side of a region.

The blocks are the ResNet blocks of transformers; their outputs equal those of the public VL-BERT code to 1e-4
(tested). Two parts differ from a ResNet: batch norm is frozen, and the last stage, which can be dilated, reads
regions.
"""

from ..processing.oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import PreTrainedModel
from transformers.models.resnet.modeling_resnet import ResNetBottleNeckLayer, ResNetEmbeddings
from transformers.utils import ModelOutput, auto_docstring
from transformers.utils.generic import can_return_tuple

from .configuration_fast_rcnn import FastRCNNConfig
from .roi_align import roi_align

# Number of regions per run of the last stage. It computes each region independently, so the results do not change.
_REGIONS_AT_ONCE = 128


@auto_docstring(
    custom_intro="""
    Output of models that turn pixels and boxes into region features.
    """
)
@dataclass
class FastRCNNOutput(ModelOutput):
    r"""
    region_features (`torch.FloatTensor` of shape `(batch_size, num_regions, feature_size)`):
    One feature per region, zeros for padded regions.
    """

    region_features: Tensor | None = None


class FastRCNNFrozenBatchNorm(nn.Module):
    """Batch norm with stored statistics and without trained weights: a scale and a shift for each channel."""

    def __init__(self, num_channels: int, weight_init: float = 1.0, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight_init = weight_init
        self.weight = nn.Buffer(torch.full((num_channels,), weight_init))
        self.bias = nn.Buffer(torch.zeros(num_channels))
        self.running_mean = nn.Buffer(torch.zeros(num_channels))
        self.running_var = nn.Buffer(torch.ones(num_channels))

    def forward(self, hidden_states: Tensor) -> Tensor:
        scale = self.weight.float() * (self.running_var.float() + self.eps).rsqrt()
        shift = self.bias.float() - self.running_mean.float() * scale
        scale, shift = (channel.to(hidden_states.dtype)[:, None, None] for channel in (scale, shift))
        # One pass, which keeps no tensor of the input's size for the backward pass.
        return torch.addcmul(shift, hidden_states, scale)


class FastRCNNBlock(GradientCheckpointingLayer, ResNetBottleNeckLayer):
    """A bottleneck block of transformers' ResNet with frozen batch norm and, for the last stage, dilation."""

    def __init__(self, config: FastRCNNConfig, in_channels: int, out_channels: int, stride: int, dilation: int = 1):
        super().__init__(
            in_channels,
            out_channels,
            stride=stride,
            activation=config.hidden_act,
            downsample_in_bottleneck=config.stride_in_1x1,
        )
        middle: Any = self.layer[1].convolution
        middle.dilation = middle.padding = (dilation, dilation)
        # A frozen batch norm does not normalise a random network. This small weight keeps the scale of the states.
        self.layer[2].normalization = FastRCNNFrozenBatchNorm(out_channels, sum(config.depths) ** -0.5)
        _freeze_batch_norm(self)


class FastRCNNStage(nn.Sequential):
    """Blocks of one width; the first has the stride."""

    def __init__(self, config: FastRCNNConfig, index: int, in_channels: int, stride: int, dilation: int = 1):
        width = config.hidden_sizes[index]
        blocks = [FastRCNNBlock(config, in_channels, width, stride, dilation)]
        for _ in range(config.depths[index] - 1):
            blocks.append(FastRCNNBlock(config, width, width, 1, dilation))
        super().__init__(*blocks)

    def forward(self, hidden_states: Tensor) -> Tensor:
        checkpointing = self.training and torch.is_grad_enabled() and self[0].gradient_checkpointing
        # Reentrant checkpointing gives no gradient to layers whose input has none, such as a frozen stage's output.
        if checkpointing and any(parameter.requires_grad for parameter in self.parameters()):
            hidden_states.requires_grad_()
        return super().forward(hidden_states)


def _freeze_batch_norm(module: nn.Module) -> None:
    """Replaces every batch norm in a module by a frozen one."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(parent, name, FastRCNNFrozenBatchNorm(child.num_features, eps=child.eps))


@auto_docstring
class FastRCNNPreTrainedModel(PreTrainedModel):
    config: FastRCNNConfig
    base_model_prefix = "fast_rcnn"
    main_input_name = "pixel_values"
    input_modalities = ["image"]
    supports_gradient_checkpointing = True
    _no_split_modules = ["ResNetEmbeddings", "FastRCNNBlock"]
    # This model has no attention, so a model that contains it may use any back end.
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    @torch.no_grad()
    def _init_weights(self, module):
        """Initialize the weights"""
        super()._init_weights(module)
        if isinstance(module, nn.Conv2d):
            init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, FastRCNNFrozenBatchNorm):
            init.constant_(module.weight, module.weight_init)
            init.zeros_(module.bias)
            init.zeros_(module.running_mean)
            init.ones_(module.running_var)


@auto_docstring(
    custom_intro="""
    The region-feature network of VL-BERT: ResNet stages compute a feature map with a cell every 16 pixels, RoIAlign
    reads the regions from the map, and the last stage and a mean over the cells of a region give its feature.
    """
)
class FastRCNNFeatures(FastRCNNPreTrainedModel):
    def __init__(self, config: FastRCNNConfig):
        super().__init__(config)
        sizes = config.hidden_sizes
        self.embedder = ResNetEmbeddings(cast(Any, config))  # has the fields that it reads
        _freeze_batch_norm(self.embedder)
        self.stages = nn.ModuleList(
            [
                FastRCNNStage(config, 0, config.embedding_size, stride=1),
                FastRCNNStage(config, 1, sizes[0], stride=2),
                FastRCNNStage(config, 2, sizes[1], stride=2),
            ]
        )
        # CODEPATH: dilated in the public checkpoints; the public code has both.
        stride, dilation = (1, 2) if config.dilated_c5 else (2, 1)
        self.head = FastRCNNStage(config, 3, sizes[2], stride, dilation)

        # Initialize weights and apply final processing
        self.post_init()
        self._freeze_stages()

    def train(self, mode: bool = True) -> "FastRCNNFeatures":
        """Sets the mode, and freezes stages again, because loading weights makes parameters that require gradients."""
        super().train(mode)
        self._freeze_stages()
        return self

    def _freeze_stages(self) -> None:
        for stage in [self.embedder, *self.stages, self.head][: self.config.frozen_stages]:
            stage.requires_grad_(False)

    def get_feature_map(self, pixel_values: Tensor) -> Tensor:
        """
        Computes the feature map from which regions are read.

        Args:
            pixel_values (`torch.Tensor` of shape `(B, 3, H, W)`): images.

        Returns:
            `torch.Tensor` of shape `(B, C, h, w)` with a cell every 16 pixels.
        """
        hidden_states = self.embedder(pixel_values.to(self.embedder.embedder.convolution.weight.dtype))
        for stage in self.stages:
            hidden_states = stage(hidden_states)
        return hidden_states

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
        features = []
        for part, images in zip(boxes.split(_REGIONS_AT_ONCE), batch_index.split(_REGIONS_AT_ONCE), strict=True):
            cells = roi_align(
                feature_map,
                part,
                images,
                self.config.roi_size,
                1 / self.config.feature_stride,
                self.config.sampling_ratio,
            )
            features.append(self.head(cells).mean(dim=(2, 3)))
        return torch.cat(features)

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
            Images from the image processor: blue, green and red in 0 to 255 minus their means, padded with zeros at
            the right and the bottom.
        region_boxes (`torch.FloatTensor` of shape `(batch_size, num_regions, 4)`):
            Corners `(x1, y1, x2, y2)` in pixels of `pixel_values`.
        region_attention_mask (`torch.LongTensor` of shape `(batch_size, num_regions)`, *optional*):
            1 for regions, 0 for padding.

        Raises:
            ValueError: if boxes do not fit the images, or are not finite.
        """
        return features_of_regions(self, pixel_values, region_boxes, region_attention_mask)


def features_of_regions(
    model: Any, pixel_values: Tensor, region_boxes: Tensor, region_attention_mask: Tensor | None
) -> FastRCNNOutput:
    """The output of a model with `get_feature_map` and `get_region_features`: zeros for padded regions."""
    check_regions(pixel_values, region_boxes, region_attention_mask)
    if region_attention_mask is None:
        region_attention_mask = region_boxes.new_ones(region_boxes.shape[:2], dtype=torch.long)
    places = region_attention_mask.nonzero(as_tuple=True)
    values = model.get_region_features(model.get_feature_map(pixel_values), region_boxes[places], places[0])
    region_features = values.new_zeros(*region_boxes.shape[:2], values.shape[-1])
    region_features[places] = values
    return FastRCNNOutput(region_features=region_features)


def check_regions(pixel_values: Tensor, region_boxes: Tensor, region_attention_mask: Tensor | None) -> None:
    """Raises `ValueError` if boxes or mask do not fit the images, or a box (except padding) is not finite."""
    batch_size = len(pixel_values)
    if region_boxes.dim() != 3 or region_boxes.shape[0] != batch_size or region_boxes.shape[-1] != 4:
        raise ValueError(
            f"region_boxes have the shape {tuple(region_boxes.shape)}, expected ({batch_size}, num_regions, 4) for "
            f"the {batch_size} images of pixel_values."
        )
    if region_attention_mask is not None and region_attention_mask.shape != region_boxes.shape[:2]:
        raise ValueError(
            f"region_attention_mask has the shape {tuple(region_attention_mask.shape)}, expected "
            f"{tuple(region_boxes.shape[:2])}."
        )
    bad = ~region_boxes.isfinite().all(dim=-1)
    if region_attention_mask is not None:
        bad = bad & region_attention_mask.bool()
    if bad.any():
        image, region = bad.nonzero()[0].tolist()
        raise ValueError(
            f"region_boxes[{image}, {region}] is {region_boxes[image, region].tolist()}, expected finite pixels."
        )


__all__ = [
    "OLDEST_TRANSFORMERS",
    "FastRCNNFeatures",
    "FastRCNNOutput",
    "FastRCNNPreTrainedModel",
    "features_of_regions",
]

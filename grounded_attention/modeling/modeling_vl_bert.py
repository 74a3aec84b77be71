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
"""PyTorch VL-BERT model.

Shape letters: B batch, C choices, T text, R regions, P phrases, K phrase pairs, N = T + R + 1, D hidden, V visual
width.
The sequence has fixed columns, [text T][regions R][END], so the column of a text token or a region depends only on its
index. The public VL-BERT code instead moves the elements of each row together; position ids and the mask have the same
effect here.

Boxes are not changed. In the public code they end at the last pixel: the whole image is (0, 0, w - 1, h - 1) divided
by (w, h). The processors of this package return (0, 0, 1, 1).
"""

from ..utils.named_types import Columns, Fields
from .sequence_inputs import Queries, refuse_alone

from ..processing.oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_utils import PreTrainedModel
from transformers.models.bert.modeling_bert import BertPooler, BertPredictionHeadTransform
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .bert_start import BertStart
from .configuration_vl_bert import _REGION_TOKEN_TYPE, VLBertConfig
from .modeling_fast_rcnn import FastRCNNFeatures
from .pretraining_handover import PretrainingHandover
from .sequence_inputs import (
    Choices,
    check_region_shapes,
    check_shape,
    check_text,
    drop_unread,
    embed_words,
    get_first_state,
    locate_queries,
    sine_encoding,
)
from .task_arguments import PHRASE_ARGS, PRETRAINING_ARGS, REGION_ARGS
from .task_forward import AnsweringTask, ChoosingTask, ReferringTask, VGPTask, predict_hidden
from .task_heads import ClassificationHead, PhraseHeads, ReferringHead
from .task_losses import region_class_loss, soft_cross_entropy_sum
from .task_outputs import PreTrainingOutput
from .unpadding import (
    StreamAttention,
    UnpaddedEncoder,
    UnpaddedLayer,
    apply_packed,
    find_packing,
    keep_packing,
    unpack_recorded,
)

# The inputs are boxes divided by the image size. This tolerance corrects rounding errors of edges in pixels.
_PIXEL_TOLERANCE = 1e-3


@auto_docstring(
    custom_intro="""
    Output of [`VLBertModel`]. States at padded columns have no meaning.
    """
)
@dataclass
class VLBertModelOutput(ModelOutput):
    r"""
    last_hidden_state (`torch.FloatTensor` of shape `(batch_size, sequence_length, hidden_size)`):
        Last-layer states of the whole sequence, columns `[text][regions][END]`.
    pooler_output (`torch.FloatTensor` of shape `(batch_size, hidden_size)`):
        Dense layer and tanh on the last state of the first attended token; `None` without a pooler.
    text_hidden_state (`torch.FloatTensor` of shape `(batch_size, text_length, hidden_size)`):
        The text columns of `last_hidden_state`.
    region_hidden_state (`torch.FloatTensor` of shape `(batch_size, num_regions, hidden_size)`):
        The region columns of `last_hidden_state`.
    end_hidden_state (`torch.FloatTensor` of shape `(batch_size, hidden_size)`):
        The END column of `last_hidden_state`.
    """

    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    text_hidden_state: Tensor | None = None
    region_hidden_state: Tensor | None = None
    end_hidden_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


_PIXEL_ARGS = """
        pixel_values (`torch.FloatTensor` of shape `(batch_size, 3, height, width)`, *optional*):
            Images to compute the region features from, in the top left corner of a padded canvas, instead of
            `region_features`. For models with `config.vision_config`. Images of text-only rows are ignored.
        image_sizes (`torch.LongTensor` of shape `(batch_size, 2)`, *optional*):
            Width and height in pixels of each image within the canvas; required with `pixel_values`.
        """


def embed_coordinates(boxes: Tensor, dim: int, form: str) -> Tensor:
    """Sinusoidal embedding (..., 8 * dim) of boxes (..., 4) (public code; section 3.2 of the paper for `"corner"`)."""
    boxes = boxes.float()
    if form == "center":
        top_left = boxes[..., :2]
        bottom_right = boxes[..., 2:]
        boxes = torch.cat([(top_left + bottom_right) / 2, bottom_right - top_left], dim=-1)
    wavelengths = 1000.0 ** (torch.arange(dim, device=boxes.device, dtype=torch.float32) / dim)
    angles = (100.0 * boxes)[..., None] / wavelengths  # (..., 4, dim)
    return torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def scale_boxes(region_boxes: Tensor, image_sizes: Tensor) -> Tensor:
    """Converts normalised boxes to pixels of the padded canvas. Each image is in the top left corner of the canvas."""
    return region_boxes.float() * image_sizes[:, None].repeat(1, 1, 2)


def mask_region_pixels(pixel_values: Tensor, pixel_boxes: Tensor, masked_regions: Tensor) -> Tensor:
    """Sets the pixels of masked boxes to zero, the mean colour (VL-BERT public code, `MASK_RAW_PIXELS`)."""
    left, top, right, bottom = (pixel_boxes + _PIXEL_TOLERANCE).floor()[..., None].unbind(dim=2)  # (B, R, 1) each
    rows, columns = (torch.arange(size, device=pixel_boxes.device) for size in pixel_values.shape[2:])
    in_rows = (rows >= top) & (rows <= bottom) & masked_regions[..., None]  # (B, R, height)
    in_columns = (columns >= left) & (columns <= right)  # (B, R, width)
    boxes_over_pixel = in_rows.float().transpose(1, 2) @ in_columns.float()  # (B, height, width)
    return pixel_values.masked_fill(boxes_over_pixel[:, None] > 0, 0.0)


class VLBertRegionEncoder(nn.Module):
    """Region features and boxes to visual embeddings: [coordinates | features], dropout, linear, ReLU."""

    def __init__(self, config: VLBertConfig):
        super().__init__()
        self.coordinate_dim = config.coordinate_dim
        self.coordinate_embedding = config.coordinate_embedding
        self.dropout = nn.Dropout(config.region_dropout)
        self.projection = nn.Linear(8 * config.coordinate_dim + config.region_feature_size, config.visual_width)

    def forward(self, region_features: Tensor, region_boxes: Tensor) -> Tensor:
        dtype = self.projection.weight.dtype
        coordinates = embed_coordinates(region_boxes, self.coordinate_dim, self.coordinate_embedding)
        inputs = torch.cat([coordinates.to(dtype), region_features.to(dtype)], dim=-1)
        return self.projection(self.dropout(inputs)).relu()


class VLBertVisualLayerNorm(nn.LayerNorm):
    """LayerNorm with an initial scale from the configuration, 0 by default."""

    def __init__(self, config: VLBertConfig, scale_init: float):
        super().__init__(config.hidden_size, eps=config.layer_norm_eps)
        self.scale_init = scale_init


class VLBertVisualScale(nn.Module):
    """Multiplies visual embeddings by a learned scalar (`visual_norm=False`)."""

    def __init__(self, scale_init: float):
        super().__init__()
        self.scale_init = scale_init
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, visual_embeds: Tensor) -> Tensor:
        return visual_embeds * self.weight


class VLBertVisualAdapter(nn.Module):
    """Adapts visual embeddings to the width and the scale of the sequence: (B, *, V) -> (B, *, D)."""

    def __init__(self, config: VLBertConfig, scale_init: float):
        super().__init__()
        self.projection: nn.Linear | None = None
        # CODEPATH: the widths are equal in the public checkpoints; the public code adds a projection otherwise.
        if config.visual_width != config.hidden_size:
            self.projection = nn.Linear(config.visual_width, config.hidden_size)
        self.norm: nn.Module
        # CODEPATH: a LayerNorm in the public checkpoints; `visual_ln: false` of the public code is the scalar.
        if config.visual_norm:
            self.norm = VLBertVisualLayerNorm(config, scale_init)
        else:
            self.norm = VLBertVisualScale(scale_init)

    def forward(self, visual_embeds: Tensor) -> Tensor:
        if self.projection is not None:
            visual_embeds = self.projection(visual_embeds)
        return self.norm(visual_embeds)


class VLBertEmbeddings(nn.Module):
    """Text, regions and END with their visual parts, positions and token types, on fixed columns."""

    def __init__(self, config: VLBertConfig):
        super().__init__()
        self.position_offset = config.position_offset
        self.word_embeddings: nn.Module = nn.Embedding(
            config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id
        )
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.end_embedding = nn.Embedding(1, config.hidden_size)
        # The word embedding of a region; one for all regions.
        self.region_embedding = nn.Embedding(1, config.hidden_size)
        # The visual part of text without an image.
        self.text_only_visual_embedding = nn.Embedding(1, config.visual_width)
        self.text_visual = VLBertVisualAdapter(config, config.visual_scale_text_init)
        self.region_visual = VLBertVisualAdapter(config, config.visual_scale_region_init)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.spatial_encoding = config.spatial_encoding

    def forward(
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        text_visual_embeds: Tensor,
        region_visual_embeds: Tensor,
        region_linguistic_embeds: Tensor,
        region_boxes: Tensor,
    ) -> Tensor:
        """Embeds the sequence, shape (B, N, D)."""
        batch_size, num_regions = region_visual_embeds.shape[:2]
        text = inputs_embeds + self.text_visual(text_visual_embeds)
        regions = region_linguistic_embeds + self.region_visual(region_visual_embeds)
        # CODEPATH: off in all public checkpoints; models pre-trained with grounding alignment may have it.
        if self.spatial_encoding is not None:
            regions = regions + sine_encoding(region_boxes, regions.shape[-1]).to(regions.dtype)
        end = self.end_embedding(token_type_ids.new_zeros(batch_size, 1))
        embeddings = torch.cat([text, regions, end], dim=1)

        types = token_type_ids.new_full((batch_size, num_regions + 1), _REGION_TOKEN_TYPE)
        embeddings = embeddings + self.token_type_embeddings(torch.cat([token_type_ids, types], dim=1))
        embeddings = embeddings + self.position_embeddings(self.create_position_ids(attention_mask, num_regions))
        return self.dropout(self.LayerNorm(embeddings))

    def get_visual_context(self, region_visual_embeds: Tensor, region_mask: Tensor) -> Tensor:
        """Per row the embedding of the whole image (the first attended region), or the text-only one: (B, 1, V)."""
        text_only = self.text_only_visual_embedding(region_mask.new_zeros(region_mask.shape[0], 1, dtype=torch.long))
        if region_mask.shape[1] == 0:
            return text_only
        first = region_mask.int().argmax(dim=1)[:, None, None].expand(-1, 1, region_visual_embeds.shape[-1])
        return torch.where(region_mask.any(1)[:, None, None], region_visual_embeds.gather(1, first), text_only)

    def create_position_ids(self, attention_mask: Tensor, num_regions: int) -> Tensor:
        """The rank of a text token among the L tokens of its row, L for every region, L + 1 for END: (B, N)."""
        ranks = attention_mask.long().cumsum(dim=1)
        lengths = ranks[:, -1:]
        text = (ranks - 1).clamp(min=0)
        return torch.cat([text, lengths.expand(-1, num_regions), lengths + 1], dim=1) + self.position_offset


class VLBertMLMHead(nn.Module):
    """Masked-word prediction; the decoder weights are tied to the word embeddings, its bias is not."""

    def __init__(self, config: VLBertConfig):
        super().__init__()
        self.transform = BertPredictionHeadTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.decoder(self.transform(hidden_states))


class VLBertRegionHead(nn.Module):
    """Computes `num_labels` scores per region; unlike the word head it has no LayerNorm."""

    def __init__(self, config: VLBertConfig, num_labels: int):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.classifier = nn.Linear(config.hidden_size, num_labels)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.classifier(self.activation(self.dense(hidden_states)))


class VLBertAnswerHead(nn.Module):
    """The transform of the masked-word head, then dropout and a linear layer with one row per answer."""

    def __init__(self, config: VLBertConfig):
        super().__init__()
        self.transform = BertPredictionHeadTransform(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, len(config.answers))

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.classifier(self.dropout(self.transform(hidden_states)))


class VLBertRegionMask(nn.Embedding):
    """The feature that replaces that of a masked region; initially zero, as masked pixels (VL-BERT public code)."""


@auto_docstring
class VLBertPreTrainedModel(BertStart, PretrainingHandover, PreTrainedModel):
    config: VLBertConfig
    base_model_prefix = "vl_bert"
    input_modalities = ["image", "text"]
    supports_gradient_checkpointing = True
    _input_embed_layer = "word_embeddings"
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _no_split_modules = ["VLBertEmbeddings", "VLBertRegionEncoder", "UnpaddedLayer"]
    _can_record_outputs = {"hidden_states": UnpaddedLayer, "attentions": StreamAttention}
    # The losses are plain means over the current batch.
    accepts_loss_kwargs = False

    @torch.no_grad()
    def _init_weights(self, module):
        """Initialize the weights"""
        super()._init_weights(module)
        if isinstance(module, (VLBertVisualLayerNorm, VLBertVisualScale)):
            init.constant_(module.weight, module.scale_init)
        elif isinstance(module, VLBertRegionMask):
            init.zeros_(module.weight)

    def _rename_bert_weight(self, name: str, prefix: str) -> str:
        """
        The name in this model of a weight of `BertForPreTraining`. BERT has two of the three token types, without that
        of regions. The transform of its masked-word head also initialises an answer head of type `"mlm"`.
        """
        name = super()._rename_bert_weight(name, prefix)
        if name == "cls.predictions.bias":
            name = "mlm_head.decoder.bias"
        name = name.replace("cls.predictions.", "mlm_head.").replace("cls.seq_relationship.", "relationship_head.")
        return self._rename_head(name)


@auto_docstring(
    custom_intro="""
    The VL-BERT encoder: one stream of words and image regions, without heads.
    """
)
class VLBertModel(VLBertPreTrainedModel):
    def __init__(self, config: VLBertConfig, add_pooling_layer: bool | None = None):
        r"""
        add_pooling_layer (`bool`, *optional*):
        Whether to add a pooler; `config.use_pooler` decides when not given.
        """
        super().__init__(config)
        if add_pooling_layer is None:
            add_pooling_layer = config.use_pooler
        # CODEPATH: the public end-to-end checkpoints contain the network for region features from pixels.
        vision_config: Any = config.vision_config
        self.vision_model: Any = FastRCNNFeatures(vision_config) if vision_config is not None else None
        self.region_encoder = VLBertRegionEncoder(config)
        self.embeddings = VLBertEmbeddings(config)
        self.encoder = UnpaddedEncoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        self.post_init()

    @unpack_recorded
    @merge_with_config_defaults
    @capture_outputs
    @auto_docstring(
        custom_args=REGION_ARGS
        + _PIXEL_ARGS
        + r"""
        token_regions (`torch.LongTensor` of shape `(batch_size, text_length)`, *optional*):
            The region that is the visual part of each text token, -1 for the whole image; the whole image for all
            tokens when not given.
        region_linguistic_embeds (`torch.FloatTensor` of shape `(batch_size, num_regions, hidden_size)`, *optional*):
            Word embeddings of the regions, instead of the model's embedding, which is the same for all regions.
        """
    )
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        region_features: Tensor | None = None,
        region_boxes: Tensor | None = None,
        region_attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        pixel_values: Tensor | None = None,
        image_sizes: Tensor | None = None,
        token_regions: Tensor | None = None,
        region_linguistic_embeds: Tensor | None = None,
        grounding_queries: Queries | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple | VLBertModelOutput:
        inputs_embeds = embed_words(self.embeddings.word_embeddings, input_ids, inputs_embeds)
        reason = "max_position_embeddings less those of the regions and END"
        check_text(inputs_embeds, attention_mask, token_type_ids, self.config.max_text_length, reason)
        batch_size, text_length = inputs_embeds.shape[:2]
        self.check_regions(region_features, region_boxes, region_attention_mask, pixel_values, image_sizes, batch_size)
        if pixel_values is not None:
            region_features = self._compute_region_features(
                pixel_values, image_sizes, region_boxes, region_attention_mask
            )
        attention_kwargs = drop_unread(kwargs)

        device = inputs_embeds.device
        if region_features is None:
            region_features = inputs_embeds.new_zeros(batch_size, 0, self.config.region_feature_size)
            region_boxes = inputs_embeds.new_zeros(batch_size, 0, 4)
            region_attention_mask = None
        num_regions = region_features.shape[1]
        if attention_mask is None:
            attention_mask = torch.ones(batch_size, text_length, device=device, dtype=torch.bool)
        if region_attention_mask is None:
            region_attention_mask = torch.ones(batch_size, num_regions, device=device, dtype=torch.bool)
        if token_type_ids is None:
            token_type_ids = torch.zeros(batch_size, text_length, device=device, dtype=torch.long)
        text_mask = attention_mask.bool()
        region_mask = region_attention_mask.bool()

        end_mask = torch.ones_like(text_mask[:, :1])
        columns = torch.cat([text_mask, region_mask, end_mask], dim=1)
        # Both are found here: in between, torch.compile would cut its graph behind the mask of the back end and fail.
        packed_regions = find_packing(region_mask, self.config.unpad)
        packing = find_packing(columns, self.config.unpad)
        region_visual_embeds = apply_packed(self.region_encoder, packed_regions, region_features, region_boxes)
        text_visual_embeds = self.embeddings.get_visual_context(region_visual_embeds, region_mask)
        text_visual_embeds = text_visual_embeds.expand(-1, text_length, -1)
        if token_regions is not None:
            _check_token_regions(token_regions, (batch_size, text_length), region_mask)
            text_visual_embeds = _see_regions(text_visual_embeds, region_visual_embeds, token_regions)
        if region_linguistic_embeds is None:
            region_linguistic_embeds = self.embeddings.region_embedding(token_type_ids.new_zeros(batch_size, 1))
        embedding_output = self.embeddings(
            inputs_embeds=inputs_embeds,
            attention_mask=text_mask,
            token_type_ids=token_type_ids,
            text_visual_embeds=text_visual_embeds,
            region_visual_embeds=region_visual_embeds,
            region_linguistic_embeds=region_linguistic_embeds.expand(-1, num_regions, -1),
            region_boxes=region_boxes,
        )

        sequence_mask = create_bidirectional_mask(
            config=self.config, inputs_embeds=embedding_output, attention_mask=columns
        )
        if grounding_queries is not None:
            attention_kwargs["attention_queries"] = locate_queries(grounding_queries, text_length)
        sequence_output = self.encoder(embedding_output, sequence_mask, packing, **attention_kwargs)
        text_states, region_states, end_states = sequence_output.split([text_length, num_regions, 1], dim=1)
        pooled_output = None
        if self.pooler is not None:
            pooled_output = self.pooler(get_first_state(text_states, text_mask)[:, None])

        outputs = VLBertModelOutput(
            last_hidden_state=sequence_output,
            pooler_output=pooled_output,
            text_hidden_state=text_states,
            region_hidden_state=region_states,
            end_hidden_state=end_states[:, 0],
        )
        return keep_packing(outputs, packing)

    def get_region_features(
        self,
        pixel_values: Tensor,
        image_sizes: Tensor,
        region_boxes: Tensor,
        region_attention_mask: Tensor | None = None,
    ) -> Tensor:
        """
        Computes region features from images with the pixel network of the model; zeros for padded regions.

        Args:
            pixel_values (`torch.Tensor` of shape `(batch_size, 3, height, width)`): images on a padded canvas.
            image_sizes (`torch.LongTensor` of shape `(batch_size, 2)`): width and height of each in pixels.
            region_boxes (`torch.Tensor` of shape `(batch_size, num_regions, 4)`): boxes divided by these sizes.
            region_attention_mask (`torch.Tensor` of shape `(batch_size, num_regions)`, *optional*): 0 for padding.

        Returns:
            `torch.Tensor` of shape `(batch_size, num_regions, region_feature_size)`.

        Raises:
            ValueError: if the model has no pixel network, an image is larger than the canvas, or shapes do not fit.
        """
        self.check_regions(None, region_boxes, region_attention_mask, pixel_values, image_sizes, len(region_boxes))
        return self._compute_region_features(pixel_values, image_sizes, region_boxes, region_attention_mask)

    def _compute_region_features(
        self, pixel_values: Any, image_sizes: Any, region_boxes: Any, region_attention_mask: Tensor | None
    ) -> Tensor:
        """[`get_region_features`] of inputs that `check_regions` has checked."""
        if region_attention_mask is None:
            region_attention_mask = torch.ones(region_boxes.shape[:2], device=region_boxes.device, dtype=torch.bool)
        # Text-only rows have no image.
        rows = region_attention_mask.bool().any(dim=1).nonzero().squeeze(1)
        pixel_values = pixel_values[rows]
        image_sizes = image_sizes[rows]
        height, width = pixel_values.shape[2:]
        if (image_sizes > image_sizes.new_tensor([width, height])).any() or (image_sizes < 1).any():
            raise ValueError(
                f"image_sizes are {image_sizes.tolist()} on a canvas {width} wide and {height} high; expected the "
                "width and height of each image in pixels, no larger than the canvas."
            )
        boxes = scale_boxes(region_boxes[rows], image_sizes)
        features = self.vision_model(pixel_values, boxes, region_attention_mask[rows]).region_features
        return features.new_zeros(*region_boxes.shape[:2], features.shape[-1]).index_copy(0, rows, features)

    def check_regions(
        self, region_features, region_boxes, region_attention_mask, pixel_values, image_sizes, batch_size: int
    ) -> None:
        """Raises `ValueError` if region inputs (see `forward`) are missing, too many or have a wrong shape."""
        if region_features is not None and pixel_values is not None:
            raise ValueError("Give region_features or pixel_values, not both.")
        if (pixel_values is None) != (image_sizes is None):
            present, absent = (
                ("pixel_values", "image_sizes") if image_sizes is None else ("image_sizes", "pixel_values")
            )
            raise ValueError(f"{present} are given without {absent}; an image needs both.")
        if region_features is None and pixel_values is None:
            boxes = {"region_boxes": region_boxes, "region_attention_mask": region_attention_mask}
            refuse_alone("region_features or pixel_values; a region needs both", **boxes)
        elif region_boxes is None:
            present = "region_features" if pixel_values is None else "pixel_values"
            raise ValueError(f"{present} are given without region_boxes; a region needs both.")
        if pixel_values is not None:
            if self.vision_model is None:
                raise ValueError(
                    "pixel_values are given, but this model has no pixel network (config.vision_config is None): give "
                    "region_features."
                )
            check_shape("pixel_values", pixel_values, (batch_size, 3, "height", "width"))
            check_shape("image_sizes", image_sizes, (batch_size, 2))
        regions = (region_features, region_boxes, region_attention_mask)
        check_region_shapes(*regions, batch_size, "region_feature_size", self.config.region_feature_size)


def _check_token_regions(token_regions: Tensor, shape: tuple[int, int], region_mask: Tensor) -> None:
    """Raises `ValueError` for indices outside the valid regions of `region_mask` (B, R)."""
    check_shape("token_regions", token_regions, shape)
    num_regions = region_mask.shape[1]
    # An additional last column represents indices out of range.
    known = nn.functional.pad(region_mask, (0, 1), value=False)
    if not (known.gather(1, token_regions.clamp(0, num_regions)) | (token_regions < 0)).all():
        raise ValueError(
            f"token_regions contain the index of a padded region or one outside the {num_regions} columns; expected "
            "indices of regions, or -1 for the whole image."
        )


def _see_regions(text_visual_embeds: Tensor, region_visual_embeds: Tensor, token_regions: Tensor) -> Tensor:
    """Visual parts (B, T, V) of the text: those of `token_regions` (VL-BERT public code, the tags of VCR)."""
    if region_visual_embeds.shape[1] == 0:
        return text_visual_embeds
    index = token_regions.clamp(min=0)[..., None].expand(-1, -1, region_visual_embeds.shape[-1])
    return torch.where((token_regions < 0)[..., None], text_visual_embeds, region_visual_embeds.gather(1, index))


@auto_docstring(
    custom_intro="""
    VL-BERT with the heads of its pre-training: masked words, masked regions and, optionally, whether caption and image
    belong together.
    """
)
class VLBertForPreTraining(PhraseHeads, VLBertPreTrainedModel):
    _tied_weights_keys = {"mlm_head.decoder.weight": "vl_bert.embeddings.word_embeddings.weight"}

    def __init__(self, config: VLBertConfig):
        super().__init__(config)
        self.vl_bert = VLBertModel(config, add_pooling_layer=config.relationship_head)
        self.mlm_head = VLBertMLMHead(config)
        self.region_head = VLBertRegionHead(config, config.region_classes)
        # CODEPATH: absent from the public checkpoints; present in those trained with `WITH_REL_LOSS`.
        self.relationship_head = nn.Linear(config.hidden_size, 2) if config.relationship_head else None
        # These replace the feature of a masked region and its word embedding.
        self.region_mask_embedding: nn.Module | None = None
        # CODEPATH: the public end-to-end checkpoints hide pixels instead and do not have this feature.
        if config.region_masking == "feature":
            self.region_mask_embedding = VLBertRegionMask(1, config.region_feature_size)
        self.masked_region_embedding = nn.Embedding(1, config.hidden_size)
        self.make_phrase_heads()
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.mlm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear):
        self.mlm_head.decoder = new_embeddings

    @can_return_tuple
    @auto_docstring(
        custom_args=REGION_ARGS
        + _PIXEL_ARGS
        + PRETRAINING_ARGS
        + PHRASE_ARGS
        + r"""
        masked_regions (`torch.BoolTensor` of shape `(batch_size, num_regions)`, *optional*):
            Regions to hide: a learned embedding replaces their words, and `config.region_masking` determines whether
            another one replaces their features or their pixels are blanked. Their boxes do not change.
        text_only (`torch.BoolTensor` of shape `(batch_size,)`, *optional*):
            Rows of a text-only corpus. When given, the loss of the masked words is the mean over the words of these
            rows plus the mean over the words of the other rows (VL-BERT public code); otherwise one mean over all.
        region_labels (`torch.LongTensor` of shape `(batch_size, num_regions)`, *optional*):
            Classes of the regions to predict, -100 elsewhere.
        region_label_probs (`torch.FloatTensor` of shape `(batch_size, num_regions, region_classes)`, *optional*):
            Class distributions of the regions to predict, zeros elsewhere (VL-BERT public code), instead of
            `region_labels`.
        """
    )
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        region_features: Tensor | None = None,
        region_boxes: Tensor | None = None,
        region_attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        pixel_values: Tensor | None = None,
        image_sizes: Tensor | None = None,
        grounding_queries: Queries | None = None,
        masked_regions: Tensor | None = None,
        text_only: Tensor | None = None,
        labels: Tensor | None = None,
        region_labels: Tensor | None = None,
        region_label_probs: Tensor | None = None,
        relationship_labels: Tensor | None = None,
        phrase_mask: Tensor | None = None,
        alignment_phrases: Tensor | None = None,
        alignment_pairs: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple | PreTrainingOutput:
        regions: Fields = {
            "region_features": region_features,
            "region_boxes": region_boxes,
            "region_attention_mask": region_attention_mask,
            "pixel_values": pixel_values,
            "image_sizes": image_sizes,
        }
        if masked_regions is not None:
            given = [value for value in (region_features, pixel_values) if value is not None]
            self.vl_bert.check_regions(**regions, batch_size=len(given[0] if given else masked_regions))
            regions = self._mask_regions(masked_regions, **regions)
        texts: Any = {
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "inputs_embeds": inputs_embeds,
        }
        inputs = {**texts, **regions, "grounding_queries": grounding_queries}
        outputs = self.vl_bert(input_ids, **inputs, return_dict=True, **kwargs)
        return predict_hidden(
            outputs,
            word_head=self.mlm_head,
            region_head=self.region_head,
            relationship_head=self.relationship_head,
            attention_mask=attention_mask,
            region_attention_mask=region_attention_mask,
            labels=labels,
            text_only=text_only,
            region_targets={"region_labels": region_labels, "region_label_probs": region_label_probs},
            region_loss=partial(region_class_loss, of_probabilities=soft_cross_entropy_sum),
            relationship_labels=relationship_labels,
            phrase_scores=self.score_phrases(outputs, phrase_mask, alignment_phrases, alignment_pairs),
            unpad=self.config.unpad,
        )

    def _mask_regions(
        self,
        masked_regions: Tensor,
        region_features: Any,
        region_boxes: Any,
        region_attention_mask: Any,
        pixel_values: Any,
        image_sizes: Any,
    ) -> Fields:
        """The region inputs of [`VLBertModel`], with masked regions hidden."""
        if region_features is None and pixel_values is None:
            # Text only; a collator may still add masks without columns.
            check_shape("masked_regions", masked_regions, (len(masked_regions), 0))
            return {}
        check_shape("masked_regions", masked_regions, tuple(region_boxes.shape[:2]))
        masked = masked_regions.bool()
        if region_attention_mask is not None:
            masked = masked & region_attention_mask.bool()
        row = torch.zeros(1, 1, device=masked.device, dtype=torch.long)
        if self.region_mask_embedding is None:
            if pixel_values is None:
                raise ValueError(
                    'masked_regions are given with region_features, but config.region_masking is "pixels": give '
                    "pixel_values and image_sizes."
                )
            pixel_values = mask_region_pixels(pixel_values, scale_boxes(region_boxes, image_sizes), masked)
        else:
            if pixel_values is not None:
                region_features = self.vl_bert._compute_region_features(
                    pixel_values, image_sizes, region_boxes, region_attention_mask
                )
                pixel_values = None
                image_sizes = None
            region_features = torch.where(masked[..., None], self.region_mask_embedding(row), region_features)
        word = self.vl_bert.embeddings.region_embedding(row)
        masked_word = self.masked_region_embedding(row)
        return {
            "region_features": region_features,
            "region_boxes": region_boxes,
            "region_attention_mask": region_attention_mask,
            "region_linguistic_embeds": torch.where(masked[..., None], masked_word, word),
            "pixel_values": pixel_values,
            "image_sizes": image_sizes,
        }


@auto_docstring(
    custom_intro="""
    VL-BERT for visually grounded paraphrases: predicts which caption belongs to the image, the relation of phrase
    pairs and, optionally, the region of each phrase and the box of the object that each word names.
    """
)
class VLBertForVGP(VGPTask, VLBertPreTrainedModel):
    def __init__(self, config: VLBertConfig):
        super().__init__(config)
        pooled = config.identification_pooling == "pooled"
        if pooled:
            # So that a base model from a checkpoint of this model has the saved pooler.
            config.use_pooler = True
        self.vl_bert = VLBertModel(config, add_pooling_layer=pooled)
        self.make_vgp_heads()
        self.post_init()


@auto_docstring(
    custom_intro="""
    VL-BERT for referring expressions: finds the region that the text describes. It scores every region, including the
    whole image.
    """
)
class VLBertForReferringExpression(ReferringTask, VLBertPreTrainedModel):
    _heads_from_pretraining = {"region_head.dense.": "referring_head.dense."}

    def __init__(self, config: VLBertConfig):
        super().__init__(config)
        # So that a base model from a checkpoint of this model has no pooler either.
        config.use_pooler = False
        self.vl_bert = VLBertModel(config, add_pooling_layer=False)
        self.referring_head = ReferringHead(config)
        self.post_init()


@auto_docstring(
    custom_intro="""
    VL-BERT for visual question answering: scores the answers of `config.answers` from the state of the `[MASK]` that
    stands for the answer.
    """
)
class VLBertForVisualQuestionAnswering(AnsweringTask, VLBertPreTrainedModel):
    _heads_from_pretraining = {"mlm_head.transform.": "answer_head.transform."}

    def __init__(self, config: VLBertConfig):
        super().__init__(config)
        # So that a base model from a checkpoint of this model has no pooler either.
        config.use_pooler = False
        self.vl_bert = VLBertModel(config, add_pooling_layer=False)
        self.answer_head: Any
        # CODEPATH: "mlm" in the public configuration; the others are the public code's options.
        if config.answer_head == "mlm":
            self.answer_head = VLBertAnswerHead(config)
        else:
            self.answer_head = ClassificationHead(
                config.hidden_size, config.answer_width, len(config.answers), config.classifier_dropout
            )
        self.post_init()

    @torch.no_grad()
    def init_classifier_from_answers(self, tokenizer: Any) -> None:
        """
        Initialises the row of each answer with the mean embedding of its word pieces, and the biases with 0 (VL-BERT
        public code).

        Args:
            tokenizer: the tokenizer of the word embeddings.

        Raises:
            ValueError: if `config.answers` is not set, an answer has no word piece, or the width of the head's last
                layer differs from that of the word embeddings.
        """
        answers = self.config.answers
        classifier = self.answer_head.classifier
        words: Any = self.get_input_embeddings().weight
        if answers == [f"LABEL_{index}" for index in range(len(answers))]:
            raise ValueError("config.answers are placeholders (LABEL_0, ...); set config.answers first.")
        if classifier.in_features != words.shape[1]:
            raise ValueError(
                f"The last layer of the answer head has width {classifier.in_features}, but words have width "
                f"{words.shape[1]}; remove answer_hidden_size, or choose another answer_head."
            )
        for row, answer in enumerate(answers):
            pieces = tokenizer(answer, add_special_tokens=False, split_special_tokens=True)["input_ids"]
            if not pieces:
                raise ValueError(f"Answer {row}, {answer!r}, has no word piece; remove it from config.answers.")
            classifier.weight[row] = words[pieces].mean(dim=0)
        classifier.bias.zero_()


@auto_docstring(
    custom_intro="""
    VL-BERT for multiple choice, as in visual commonsense reasoning: scores each choice from the pooled state of
    question and choice and, optionally, classifies the regions.
    """
)
class VLBertForMultipleChoice(ChoosingTask, VLBertPreTrainedModel):
    _heads_from_pretraining = {"region_head.dense.": "region_class_head.dense."}
    _heads_to_adapt = ("relationship_head.",)

    def __init__(self, config: VLBertConfig):
        super().__init__(config)
        # So that a base model from a checkpoint of this model has the saved pooler.
        config.use_pooler = True
        self.vl_bert = VLBertModel(config, add_pooling_layer=True)
        self.choice_head = ClassificationHead(
            config.hidden_size, config.choice_hidden_size, 1, config.classifier_dropout
        )
        self.region_class_head: Any = None
        # CODEPATH: public VCR checkpoints have this head; the public code adds it with `CNN_LOSS_TOP`.
        if config.choice_region_classes is not None:
            self.region_class_head = VLBertRegionHead(config, config.choice_region_classes)
        self.post_init()

    @torch.no_grad()
    def _adapt_pretraining_weights(self, source: Mapping[str, Tensor], config: Any = None) -> set[str]:
        """Copies token type 0 to type 1 (the choice); choice scores start as the difference of relationship scores."""
        types: Any = self.vl_bert.embeddings.token_type_embeddings.weight
        types[1] = types[0]
        adapted = {"vl_bert.embeddings.token_type_embeddings.weight"}
        if not source or self.choice_head.dense is not None:
            return adapted
        for part in ("weight", "bias"):
            rows = source[f"relationship_head.{part}"]
            getattr(self.choice_head.classifier, part).copy_(rows[1:] - rows[:1])
            adapted.add(f"choice_head.classifier.{part}")
        return adapted

    def _encode_choices(self, choices: Choices, queries: Any, inputs: Columns) -> Any:
        inputs = dict(inputs)
        pixels = (inputs.pop("pixel_values", None), inputs.pop("image_sizes", None))
        if pixels != (None, None):
            # Once for all choices.
            boxes = (inputs["region_boxes"], inputs["region_attention_mask"])
            self.vl_bert.check_regions(inputs["region_features"], *boxes, *pixels, choices.batch_size)
            inputs["region_features"] = self.vl_bert._compute_region_features(*pixels, *boxes)
        return super()._encode_choices(choices, queries, inputs)


__all__ = [
    "OLDEST_TRANSFORMERS",
    "VLBertForMultipleChoice",
    "VLBertForPreTraining",
    "VLBertForReferringExpression",
    "VLBertForVGP",
    "VLBertForVisualQuestionAnswering",
    "VLBertModel",
    "VLBertPreTrainedModel",
]

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
"""PyTorch ViLBERT model.

Shape letters: B batch, C choices, T text, R regions, P phrases, D text width, E region width, F fused width.
Text and regions are two streams that meet in co-attention layers. The first region is the whole image. The names of
weights are those of the public checkpoints, with `vilbert` instead of `bert`.
"""

from ..utils.named_types import Columns
from .sequence_inputs import Queries, check_regions

from ..processing.oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import PreTrainedModel
from transformers.models.bert.modeling_bert import (
    BertEmbeddings,
    BertIntermediate,
    BertLMPredictionHead,
    BertOutput,
    BertPredictionHeadTransform,
)
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple

from .attention_calls import REGIONS, TEXT
from .bert_start import BertStart
from .configuration_vilbert import ViLBertConfig
from .pretraining_handover import PretrainingHandover
from .sequence_inputs import (
    check_shape,
    check_text,
    drop_unread,
    embed_words,
    get_first_state,
    sine_encoding,
)
from .task_arguments import (
    PHRASE_ARGS,
    PRETRAINING_ARGS,
    REGION_ARGS,
    REGION_TARGET_ARGS,
)
from .task_forward import (
    ChoosingTask,
    GroundingTask,
    PooledAnsweringTask,
    ReasoningTask,
    ReferringTask,
    VGPTask,
    WordHead,
    choose_region,
    predict_hidden,
)
from .task_heads import GroundingHead, PhraseHeads, StatePooler, TwoLayerHead, fuse_pooled
from .task_losses import region_target_loss
from .task_outputs import PreTrainingOutput, TwoStreamModelOutput
from .two_streams import (
    ConfigView,
    StreamAttentionBlock,
    StreamLayer,
    TwoStreams,
    hide_regions,
    locate_boxes,
    take_region_inputs,
)
from .unpadding import StreamAttention, attend
from .unpadding import eager_attention_forward as eager_attention_forward  # supervised eager attention looks here

_TASK_ARGS = """
        task_ids (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            Number of the task of each row, from 0 to `num_task_tokens - 1`. Required with
            `config.task_specific_tokens`, and unused without.
        """


class ViLBertTextEmbeddings(BertEmbeddings):
    """BERT's embeddings. A token for the task, without position and type, takes the last column."""

    def __init__(self, config: ViLBertConfig):
        super().__init__(config)
        self.task_embeddings: Any = None
        # CODEPATH: 12-in-1 checkpoints with task tokens have it.
        if config.task_specific_tokens:
            self.task_embeddings = nn.Embedding(config.num_task_tokens, config.hidden_size)

    def forward(  # type: ignore[override]
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        task_ids: Tensor | None = None,
    ) -> Tensor:
        """Embeds the text: (B, T, D), or (B, T + 1, D) with a task token."""
        # The rank of a token among the tokens of its row, for left and right padding.
        position_ids = (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
        text = inputs_embeds + self.token_type_embeddings(token_type_ids) + self.position_embeddings(position_ids)
        if self.task_embeddings is not None:
            text = torch.cat([text, self.task_embeddings(task_ids)[:, None]], dim=1)
        return self.dropout(self.LayerNorm(text))


class ViLBertImageEmbeddings(nn.Module):
    """The sum of linear layers on feature and location, and a LayerNorm."""

    def __init__(self, config: ViLBertConfig):
        super().__init__()
        self.image_embeddings = nn.Linear(config.v_feature_size, config.v_hidden_size)
        self.image_location_embeddings = nn.Linear(5, config.v_hidden_size)
        self.LayerNorm = nn.LayerNorm(config.v_hidden_size, eps=config.layer_norm_eps)
        # As in the public code: the dropout of the text.
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.spatial_encoding = config.spatial_encoding

    def forward(self, region_features: Tensor, region_boxes: Tensor) -> Tensor:
        """Embeds features (B, R, v_feature_size) and boxes (B, R, 4): (B, R, E)."""
        dtype = self.image_embeddings.weight.dtype
        locations = locate_boxes(region_boxes, 5)
        regions = self.image_embeddings(region_features.to(dtype)) + self.image_location_embeddings(
            locations.to(dtype)
        )
        # CODEPATH: off in all public checkpoints; models pre-trained with grounding alignment may have it.
        if self.spatial_encoding is not None:
            regions = regions + sine_encoding(region_boxes, regions.shape[-1]).to(dtype)
        return self.dropout(self.LayerNorm(regions))


class ViLBertRegionAttention(StreamAttention):
    """Self-attention of the regions. With `dynamic_attention` the mean text state scales queries and keys."""

    def __init__(self, config: Any, layer_idx: int):
        super().__init__(config, layer_idx)
        # CODEPATH: off in all public checkpoints.
        if config.dynamic_attention:
            self.dyLinear_q = nn.Linear(config.text_hidden_size, config.hidden_size)
            self.dyLinear_k = nn.Linear(config.text_hidden_size, config.hidden_size)

    def forward(
        self, states: Tensor, others: Tensor, mask: Any = None, *, mean_text: Any = None, **kwargs: Any
    ) -> tuple[Tensor, Any]:
        """Context of the regions, and the report; `mean_text` (B, 1, D)."""
        if mean_text is None:
            return super().forward(states, others, mask, **kwargs)
        packing = kwargs.get("query_packing")
        query = self.query(states) * _spread(1 + self.dyLinear_q(mean_text).sigmoid(), packing)
        key = self.key(states) * _spread(1 + self.dyLinear_k(mean_text).sigmoid(), packing)
        return attend(self, query, key, self.value(states), mask, self.config.attention_probs_dropout_prob, **kwargs)


def _spread(row: Tensor, packing: Any) -> Tensor:
    """A value (B, 1, D) for each row at its valid columns."""
    if packing is None:
        return row
    return packing.pack(row.expand(-1, packing.length, -1))


class ViLBertRegionAttentionBlock(StreamAttentionBlock):
    attention_class = ViLBertRegionAttention


class ViLBertRegionLayer(StreamLayer):
    block_class = ViLBertRegionAttentionBlock


# The name does not contain "Attention": transformers would treat the class as one with exchangeable back ends.
class ViLBertCrossProjections(nn.Module):
    """The co-attention of both streams: 1 in the names of weights is the regions' stream, 2 the text's."""

    is_causal = False
    is_cross_attention = True
    num_key_value_groups = 1

    def __init__(self, config: ViLBertConfig, layer_idx: int):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.num_attention_heads = config.bi_num_attention_heads
        for number, size in ((1, config.v_hidden_size), (2, config.hidden_size)):
            for name in ("query", "key", "value"):
                self.add_module(f"{name}{number}", nn.Linear(size, config.bi_hidden_size))

    def forward(
        self,
        text: Tensor,
        regions: Tensor,
        masks: Mapping[Any, Any],
        packing: Columns,
        requests: Mapping[Any, Any],
    ) -> tuple[Tensor, Tensor, list[Any]]:
        """Contexts of text and regions, and the reports of both directions; see [`TwoStreams.run_cross`]."""
        states = {TEXT: text, REGIONS: regions}
        numbers = {TEXT: 2, REGIONS: 1}
        dropout = {TEXT: self.config.v_attention_probs_dropout_prob, REGIONS: self.config.attention_probs_dropout_prob}
        contexts = {}
        reports = []
        for call, request in requests.items():
            queries, keys = call
            query = getattr(self, f"query{numbers[queries]}")(states[queries])
            key = getattr(self, f"key{numbers[keys]}")(states[keys])
            value = getattr(self, f"value{numbers[keys]}")(states[keys])
            packings = (packing[queries], packing[keys])
            context, report = attend(self, query, key, value, masks[call], dropout[queries], *packings, **request)
            contexts[queries] = context
            reports.append(report)
        return contexts[TEXT], contexts[REGIONS], reports


class ViLBertCrossOutput(nn.Module):
    """Linear layer, dropout, residual connection and LayerNorm of each stream; 1 regions, 2 text."""

    def __init__(self, config: ViLBertConfig):
        super().__init__()
        self.dense1 = nn.Linear(config.bi_hidden_size, config.v_hidden_size)
        self.LayerNorm1 = nn.LayerNorm(config.v_hidden_size, eps=config.layer_norm_eps)
        self.dropout1 = nn.Dropout(config.v_hidden_dropout_prob)
        self.dense2 = nn.Linear(config.bi_hidden_size, config.hidden_size)
        self.LayerNorm2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout2 = nn.Dropout(config.hidden_dropout_prob)


class ViLBertCrossLayer(GradientCheckpointingLayer):
    """Co-attention of both streams, then a feed-forward block in each."""

    def __init__(self, config: ViLBertConfig, layer_idx: int):
        super().__init__()
        self.biattention = ViLBertCrossProjections(config, layer_idx)
        self.biOutput = ViLBertCrossOutput(config)
        region_config = region_sizes(config)
        self.v_intermediate = BertIntermediate(region_config)
        self.v_output = BertOutput(region_config)
        self.t_intermediate = BertIntermediate(config)
        self.t_output = BertOutput(config)

    def forward(self, text: Tensor, regions: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor, list[Any]]:
        """New states of text and regions, and the reports; see [`TwoStreams.run_cross`]."""
        text_context, region_context, reports = self.biattention(text, regions, **kwargs)
        output = self.biOutput
        regions = output.LayerNorm1(output.dropout1(output.dense1(region_context)) + regions)
        text = output.LayerNorm2(output.dropout2(output.dense2(text_context)) + text)
        regions = self.v_output(self.v_intermediate(regions), regions)
        return self.t_output(self.t_intermediate(text), text), regions, reports


def region_sizes(config: ViLBertConfig) -> Any:
    """The configuration of the regions' layers: the same with the sizes of their stream."""
    sizes = "hidden_size num_attention_heads intermediate_size hidden_act hidden_dropout_prob"
    names = [*sizes.split(), "attention_probs_dropout_prob"]
    return ConfigView(config, **{name: getattr(config, f"v_{name}") for name in names})


class ViLBertEncoder(nn.Module):
    """The layers of both streams and the co-attention between them."""

    def __init__(self, config: ViLBertConfig):
        super().__init__()
        self.config = config
        regions = region_sizes(config)
        count = len(config.t_biattention_id)
        self.layer = nn.ModuleList(StreamLayer(config, index) for index in range(config.num_hidden_layers))
        self.v_layer = nn.ModuleList(ViLBertRegionLayer(regions, index) for index in range(config.v_num_hidden_layers))
        self.c_layer = nn.ModuleList(ViLBertCrossLayer(config, index) for index in range(count))
        # CODEPATH: all public checkpoints have co-attention; it is off in an ablation of the public code.
        if not config.with_coattention:
            self.c_layer.requires_grad_(False)

    def leave_end_untrained(self, stream: str) -> None:
        """Freezes the layers of a stream after the last co-attention, for a head that reads only the other stream."""
        config = self.config
        layers, ends, number = {
            TEXT: (self.layer, config.t_biattention_id, 2),
            REGIONS: (self.v_layer, config.v_biattention_id, 1),
        }[stream]
        # CODEPATH: as above.
        meet = config.with_coattention and len(ends) > 0
        parts: list[Any] = list(layers[ends[-1] if meet else 0 :])
        if meet:
            last: Any = self.c_layer[-1]
            side, other = ("t", 1) if stream == TEXT else ("v", 2)
            parts += [getattr(last, f"{side}_intermediate"), getattr(last, f"{side}_output")]
            parts += [getattr(last.biOutput, f"dense{number}"), getattr(last.biOutput, f"LayerNorm{number}")]
            names = (f"query{number}", f"key{other}", f"value{other}")
            parts += [getattr(last.biattention, name) for name in names]
        for part in parts:
            part.requires_grad_(False)

    def forward(self, streams: TwoStreams, text_mask: Tensor) -> None:
        """Runs all layers in the order of `config.schedule`."""
        config = self.config
        calls = iter(self.config.attention_calls)
        layers: Any = {TEXT: self.layer, REGIONS: self.v_layer}
        fixed = {TEXT: config.fixed_t_layer, REGIONS: config.fixed_v_layer}
        for stream, number in config.schedule:
            call = next(calls)
            if stream == "cross":
                streams.run_cross(self.c_layer[number], [call, next(calls)])
                continue
            kwargs = {}
            # CODEPATH: off in all public checkpoints.
            if stream == REGIONS and config.dynamic_attention:
                # The mean state (B, 1, D) of the text.
                states = streams.unpacked(TEXT)
                weights = text_mask.to(states.dtype)[..., None]
                kwargs["mean_text"] = (states * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True)
            # CODEPATH: no layer is fixed in the public checkpoints.
            with torch.set_grad_enabled(torch.is_grad_enabled() and number >= fixed[stream]):
                streams.run_layer(layers[stream][number], call, **kwargs)


@auto_docstring
class ViLBertPreTrainedModel(BertStart, PretrainingHandover, PreTrainedModel):
    config: ViLBertConfig
    base_model_prefix = "vilbert"
    input_modalities = ["image", "text"]
    supports_gradient_checkpointing = True
    _input_embed_layer = "word_embeddings"
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _no_split_modules = ["ViLBertTextEmbeddings", "StreamLayer", "ViLBertRegionLayer", "ViLBertCrossLayer"]
    # The losses are plain means over the current batch.
    accepts_loss_kwargs = False

    @torch.no_grad()
    def _init_weights(self, module):
        """Initialize the weights"""
        super()._init_weights(module)
        if isinstance(module, BertLMPredictionHead):
            init.zeros_(module.bias)
        elif isinstance(module, BertEmbeddings):
            init.copy_(module.position_ids, torch.arange(module.position_ids.shape[-1]).expand((1, -1)))
            init.zeros_(module.token_type_ids)


@auto_docstring(
    custom_intro="""
    The ViLBERT encoder: a stream of words and a stream of image regions, without heads.
    """
)
class ViLBertModel(ViLBertPreTrainedModel):
    def __init__(self, config: ViLBertConfig, add_pooling_layer: bool = True):
        r"""
        add_pooling_layer (`bool`, *optional*, defaults to `True`):
        Whether to add the poolers.
        """
        super().__init__(config)
        self.embeddings = ViLBertTextEmbeddings(config)
        self.v_embeddings = ViLBertImageEmbeddings(config)
        self.encoder = ViLBertEncoder(config)
        size = config.pooled_hidden_size
        self.t_pooler = StatePooler(config.hidden_size, size, "relu") if add_pooling_layer else None
        self.v_pooler = StatePooler(config.v_hidden_size, size, "relu") if add_pooling_layer else None
        self.post_init()

    @can_return_tuple
    @auto_docstring(custom_args=REGION_ARGS + _TASK_ARGS)
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        region_features: Tensor | None = None,
        region_boxes: Tensor | None = None,
        region_attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        task_ids: Tensor | None = None,
        grounding_queries: Queries | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple | TwoStreamModelOutput:
        inputs_embeds = embed_words(self.embeddings.word_embeddings, input_ids, inputs_embeds)
        longest = self.config.max_text_length
        check_text(inputs_embeds, attention_mask, token_type_ids, longest, "max_position_embeddings")
        batch_size, text_length = inputs_embeds.shape[:2]
        visual = (region_features, region_boxes, region_attention_mask)
        check_regions(*visual, batch_size, "v_feature_size", self.config.v_feature_size, kwargs)
        task_ids = self._check_task(task_ids, batch_size)
        num_regions = 0 if region_features is None else region_features.shape[1]
        regions = take_region_inputs(*visual, inputs_embeds, self.config.v_feature_size)

        text_mask = torch.ones_like(inputs_embeds[..., 0], dtype=torch.bool)
        if attention_mask is not None:
            text_mask = attention_mask.bool()
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(text_mask, dtype=torch.long)
        text = self.embeddings(inputs_embeds, text_mask, token_type_ids, task_ids)
        # With a task token the stream has one more column.
        columns = nn.functional.pad(text_mask, (0, text.shape[1] - text_length), value=True)
        image = self.v_embeddings(regions.features, regions.boxes)
        streams = TwoStreams(self.config, text, image, columns, regions.mask, grounding_queries, drop_unread(kwargs))
        self.encoder(streams, columns)
        text_states = streams.unpacked(TEXT)
        region_states = streams.unpacked(REGIONS)
        pooled = {}
        if self.t_pooler is not None and self.v_pooler is not None:
            pooled["text_pooler_output"] = self.t_pooler(get_first_state(text_states[:, :text_length], text_mask))
            pooled["region_pooler_output"] = self.v_pooler(region_states[:, 0])
            # CODEPATH: "mul" in the public checkpoints.
            pooled["pooler_output"] = fuse_pooled(self.config.fusion_method, *pooled.values())
        return TwoStreamModelOutput(
            last_hidden_state=text_states,
            text_hidden_state=text_states[:, :text_length],
            region_hidden_state=region_states[:, :num_regions],
            hidden_states=streams.hidden_states,
            region_hidden_states=streams.region_hidden_states,
            attentions=streams.attentions,
            **pooled,
        )

    def _check_task(self, task_ids: Tensor | None, batch_size: int) -> Tensor | None:
        """The task of each row (B,), or `None` without task tokens."""
        # CODEPATH: 12-in-1 checkpoints with task tokens need it.
        if not self.config.task_specific_tokens:
            return None
        if task_ids is None:
            raise ValueError(
                "task_ids are missing: config.task_specific_tokens is True; give the task's number of each row."
            )
        if task_ids.numel() == batch_size:
            task_ids = task_ids.reshape(-1)
        check_shape("task_ids", task_ids, (batch_size,))
        return task_ids


class ViLBertRegionHead(nn.Module):
    """Predicts the class or the feature of regions."""

    def __init__(self, config: ViLBertConfig):
        super().__init__()
        self.transform = BertPredictionHeadTransform(region_sizes(config))
        features = config.visual_target != "classes"
        self.decoder = nn.Linear(config.v_hidden_size, config.v_feature_size if features else config.v_target_size)

    def forward(self, states: Tensor) -> Tensor:
        return self.decoder(self.transform(states))


class ViLBertPreTrainingHeads(nn.Module):
    """The heads of pre-training; `cls` in public checkpoints."""

    def __init__(self, config: ViLBertConfig):
        super().__init__()
        self.predictions = BertLMPredictionHead(config)
        self.dropout = nn.Dropout(0.1)
        self.bi_seq_relationship: Any = None
        # CODEPATH: all public checkpoints have it.
        if config.relationship_head:
            self.bi_seq_relationship = nn.Linear(config.pooled_hidden_size, 2)
        self.imagePredictions = ViLBertRegionHead(config)


@auto_docstring(
    custom_intro="""
    ViLBERT with the heads of pre-training: masked words, masked regions, and whether the caption belongs to the image.
    """
)
class ViLBertForPreTraining(WordHead, PhraseHeads, ViLBertPreTrainedModel):
    _heads_from_pretraining = {"cls.": "cls."}
    _tied_weights_keys = {
        "cls.predictions.decoder.bias": "cls.predictions.bias",
        "cls.predictions.decoder.weight": "vilbert.embeddings.word_embeddings.weight",
    }

    def __init__(self, config: ViLBertConfig):
        super().__init__(config)
        self.vilbert = ViLBertModel(config)
        self.cls = ViLBertPreTrainingHeads(config)
        self.make_phrase_heads()
        self.post_init()

    @can_return_tuple
    @auto_docstring(custom_args=REGION_ARGS + _TASK_ARGS + PRETRAINING_ARGS + REGION_TARGET_ARGS + PHRASE_ARGS)
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        region_features: Tensor | None = None,
        region_boxes: Tensor | None = None,
        region_attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        task_ids: Tensor | None = None,
        grounding_queries: Queries | None = None,
        masked_regions: Tensor | None = None,
        predicted_regions: Tensor | None = None,
        region_feature_targets: Tensor | None = None,
        labels: Tensor | None = None,
        text_only: Tensor | None = None,
        region_labels: Tensor | None = None,
        region_label_probs: Tensor | None = None,
        negative_regions: Tensor | None = None,
        relationship_labels: Tensor | None = None,
        phrase_mask: Tensor | None = None,
        alignment_phrases: Tensor | None = None,
        alignment_pairs: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple | PreTrainingOutput:
        texts = (input_ids, attention_mask, token_type_ids)
        shown = hide_regions(region_features, masked_regions)
        inputs = (*texts, shown, region_boxes, region_attention_mask, inputs_embeds, task_ids)
        outputs = self.vilbert(*inputs, grounding_queries=grounding_queries, return_dict=True, **kwargs)
        targets = {
            "region_labels": region_labels,
            "region_label_probs": region_label_probs,
            "region_features": region_features if region_feature_targets is None else region_feature_targets,
            "predicted_regions": predicted_regions,
            "negative_regions": negative_regions,
            "region_attention_mask": region_attention_mask,
        }
        # CODEPATH: all public checkpoints have it.
        relationship_head = self._score_relationship if self.config.relationship_head else None
        return predict_hidden(
            outputs,
            word_head=self.cls.predictions,
            region_head=self.cls.imagePredictions,
            relationship_head=relationship_head,
            attention_mask=attention_mask,
            region_attention_mask=region_attention_mask,
            labels=labels,
            text_only=text_only,
            region_targets=targets,
            region_loss=partial(region_target_loss, self.config),
            relationship_labels=relationship_labels,
            phrase_scores=self.score_phrases(outputs, phrase_mask, alignment_phrases, alignment_pairs),
            unpad=self.config.unpad,
        )

    def _score_relationship(self, pooled: Tensor) -> Tensor:
        return self.cls.bi_seq_relationship(self.cls.dropout(pooled))


@auto_docstring(
    custom_intro="""
    ViLBERT for visually grounded paraphrases: predicts which caption belongs to the image, the relation of phrase
    pairs and, optionally, the region of each phrase and the box of the object that each word names.
    """
)
class ViLBertForVGP(VGPTask, ViLBertPreTrainedModel):
    def __init__(self, config: ViLBertConfig):
        super().__init__(config)
        # CODEPATH: "pooled" in the public VGP code, "cls" in the paper's equation 1.
        pooled = config.identification_pooling == "pooled"
        self.vilbert = ViLBertModel(config, add_pooling_layer=pooled)
        self.make_vgp_heads()
        if not pooled and not self.scores_regions:
            self.vilbert.encoder.leave_end_untrained(REGIONS)
        self.post_init()


@auto_docstring(
    custom_intro="""
    ViLBERT for referring expressions: scores how well each region matches the text.
    """
)
class ViLBertForReferringExpression(ReferringTask, ViLBertPreTrainedModel):
    _packs_regions = False
    _heads_from_pretraining = {"vision_logit.": "vision_logit."}

    def __init__(self, config: ViLBertConfig):
        super().__init__(config)
        self.vilbert = ViLBertModel(config, add_pooling_layer=False)
        self.dropout = nn.Dropout(config.referring_dropout)
        self.vision_logit = nn.Linear(config.v_hidden_size, 1)
        self.vilbert.encoder.leave_end_untrained(TEXT)
        self.post_init()

    def _score_regions(self, states: Tensor) -> Tensor:
        return self.vision_logit(self.dropout(states))


@auto_docstring(
    custom_intro="""
    ViLBERT for visual question answering: scores the answers of `config.answers` from the pooled state.
    """
)
class ViLBertForVisualQuestionAnswering(PooledAnsweringTask, ViLBertPreTrainedModel):
    _heads_from_pretraining = {"vil_prediction.": "vil_prediction."}

    def __init__(self, config: ViLBertConfig):
        super().__init__(config)
        self.vilbert = ViLBertModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        size = config.pooled_hidden_size
        self.vil_prediction = TwoLayerHead(size, 2 * size, len(config.answers), config.answer_head)
        self.post_init()

    def _score_answers(self, pooled: Tensor) -> Tensor:
        return self.vil_prediction(self.dropout(pooled))


@auto_docstring(
    custom_intro="""
    ViLBERT for multiple choice, as in visual commonsense reasoning: scores each choice from the pooled state of
    question and choice.
    """
)
class ViLBertForMultipleChoice(ChoosingTask, ViLBertPreTrainedModel):
    _heads_from_pretraining = {"vil_logit.": "vil_logit."}

    def __init__(self, config: ViLBertConfig):
        super().__init__(config)
        self.vilbert = ViLBertModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.vil_logit = nn.Linear(config.pooled_hidden_size, 1)
        self.post_init()

    def _score_choices(self, pooled: Tensor) -> Tensor:
        return self.vil_logit(self.dropout(pooled))


@auto_docstring(
    custom_intro="""
    ViLBERT for reasoning over two images (NLVR2): predicts whether the text is true, from the pooled states of the
    text with each image.
    """
)
class ViLBertForVisualReasoning(ReasoningTask, ViLBertPreTrainedModel):
    _whole_image = True
    _heads_from_pretraining = {"vil_binary_prediction.": "vil_binary_prediction."}

    def __init__(self, config: ViLBertConfig):
        super().__init__(config)
        self.vilbert = ViLBertModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        size = 2 * config.pooled_hidden_size
        self.vil_binary_prediction = TwoLayerHead(size, size, 2)
        self.post_init()

    def _score_classes(self, pooled: Tensor) -> Tensor:
        return self.vil_binary_prediction(self.dropout(pooled))


@auto_docstring(
    custom_intro="""
    ViLBERT for phrase grounding (Flickr30K Entities): scores the regions for each phrase, from the states of the
    phrase's last token and of the region. The public code reads one phrase as a referring expression instead, see
    [`ViLBertForReferringExpression`].
    """
)
class ViLBertForPhraseGrounding(GroundingTask, ViLBertPreTrainedModel):
    def __init__(self, config: ViLBertConfig):
        super().__init__(config)
        self.vilbert = ViLBertModel(config, add_pooling_layer=False)
        self.grounding_head = GroundingHead(config)
        self.make_alignment_head()
        self.post_init()


@auto_docstring(
    custom_intro="""
    Output of the 12-in-1 model: the scores of all its heads.
    """
)
@dataclass
class ViLBertMultiTaskOutput(ModelOutput):
    r"""
    answer_logits (`torch.FloatTensor` of shape `(batch_size, num_labels)`):
        Scores of the answers of VQA (`config.answers`).
    gqa_logits (`torch.FloatTensor` of shape `(batch_size, num_gqa_labels)`):
        Scores of the answers of GQA.
    choice_logits (`torch.FloatTensor` of shape `(batch_size, 1)`):
        Score of each row, for the choices of VCR and for retrieval.
    reasoning_logits (`torch.FloatTensor` of shape `(batch_size / 2, 2)`):
        Scores of "false" and "true" for a text with two images, in rows 2i and 2i + 1; `None` for an odd batch size.
        These, `gqa_logits` and `entailment_logits` are `None` without `config.num_gqa_labels`.
    entailment_logits (`torch.FloatTensor` of shape `(batch_size, 3)`):
        Scores of the classes of visual entailment.
    referring_logits (`torch.FloatTensor` of shape `(batch_size, num_regions)`):
        Score of every region, -10000 for padding.
    token_logits (`torch.FloatTensor` of shape `(batch_size, text_length)`):
        Score of every token.
    mlm_logits (`torch.FloatTensor` of shape `(batch_size, text_length, vocab_size)`):
        Scores of the vocabulary for every token.
    region_logits (`torch.FloatTensor` of shape `(batch_size, num_regions, region_classes)`):
        Scores of the detector classes for every region.
    """

    answer_logits: Tensor | None = None
    gqa_logits: Tensor | None = None
    choice_logits: Tensor | None = None
    reasoning_logits: Tensor | None = None
    entailment_logits: Tensor | None = None
    referring_logits: Tensor | None = None
    token_logits: Tensor | None = None
    mlm_logits: Tensor | None = None
    region_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@auto_docstring(
    custom_intro="""
    The 12-in-1 model: ViLBERT with the heads of all tasks. For one task, load its checkpoint with the class of the
    task, such as [`ViLBertForVisualQuestionAnswering`].
    """
)
class ViLBertForMultiTask(WordHead, ViLBertPreTrainedModel):
    _heads_from_pretraining = {"cls.": "cls."}
    _tied_weights_keys = {
        "cls.predictions.decoder.bias": "cls.predictions.bias",
        "cls.predictions.decoder.weight": "vilbert.embeddings.word_embeddings.weight",
    }

    def __init__(self, config: ViLBertConfig):
        super().__init__(config)
        self.vilbert = ViLBertModel(config)
        self.cls = ViLBertPreTrainingHeads(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        size = config.pooled_hidden_size
        self.vil_prediction = TwoLayerHead(size, 2 * size, len(config.answers), config.answer_head)
        self.vil_logit = nn.Linear(size, 1)
        self.vil_prediction_gqa: Any = None
        self.vil_binary_prediction: Any = None
        self.vil_tri_prediction: Any = None
        # CODEPATH: 12-in-1 checkpoints have these, those of the first public code do not.
        if config.num_gqa_labels is not None:
            self.vil_prediction_gqa = TwoLayerHead(size, 2 * size, config.num_gqa_labels)
            self.vil_binary_prediction = TwoLayerHead(2 * size, 2 * size, 2)
            self.vil_tri_prediction = nn.Linear(size, 3)
        self.vision_logit = nn.Linear(config.v_hidden_size, 1)
        self.linguisic_logit = nn.Linear(config.hidden_size, 1)
        self.post_init()

    @can_return_tuple
    @auto_docstring(custom_args=REGION_ARGS + _TASK_ARGS)
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        region_features: Tensor | None = None,
        region_boxes: Tensor | None = None,
        region_attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        task_ids: Tensor | None = None,
        grounding_queries: Queries | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple | ViLBertMultiTaskOutput:
        texts = (input_ids, attention_mask, token_type_ids)
        regions = (region_features, region_boxes)
        inputs = (*texts, *regions, region_attention_mask, inputs_embeds, task_ids)
        outputs = self.vilbert(*inputs, grounding_queries=grounding_queries, return_dict=True, **kwargs)
        pooled = self.dropout(outputs.pooler_output)
        only_here: dict[str, Tensor] = {}
        if self.vil_prediction_gqa is not None:
            only_here["gqa_logits"] = self.vil_prediction_gqa(pooled)
            only_here["entailment_logits"] = self.vil_tri_prediction(pooled)
            if len(pooled) % 2 == 0:
                only_here["reasoning_logits"] = self.vil_binary_prediction(pooled.unflatten(0, (-1, 2)).flatten(1))
        chosen = choose_region(
            lambda states: self.vision_logit(self.dropout(states)), outputs, region_attention_mask, None
        )
        return ViLBertMultiTaskOutput(
            answer_logits=self.vil_prediction(pooled),
            choice_logits=self.vil_logit(pooled),
            referring_logits=chosen.logits,
            token_logits=self.linguisic_logit(self.dropout(outputs.text_hidden_state)).squeeze(-1),
            mlm_logits=self.cls.predictions(outputs.text_hidden_state),
            region_logits=self.cls.imagePredictions(outputs.region_hidden_state),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **only_here,
        )


__all__ = [
    "OLDEST_TRANSFORMERS",
    "ViLBertForMultiTask",
    "ViLBertForMultipleChoice",
    "ViLBertForPhraseGrounding",
    "ViLBertForPreTraining",
    "ViLBertForReferringExpression",
    "ViLBertForVGP",
    "ViLBertForVisualQuestionAnswering",
    "ViLBertForVisualReasoning",
    "ViLBertModel",
    "ViLBertPreTrainedModel",
]

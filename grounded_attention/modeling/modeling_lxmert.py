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
"""PyTorch LXMERT model.

Shape letters: B batch, C choices, T text, R regions, P phrases, D hidden.
Text and regions are two streams that meet in the cross layers. Embeddings and heads are those of the LXMERT in
transformers, with the same names of weights; the layers work with every attention back end.
"""

from ..utils.named_types import Columns, Fields
from .sequence_inputs import Queries, check_regions

from ..processing.oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import PreTrainedModel
from transformers.models.bert.modeling_bert import BertIntermediate, BertOutput, BertSelfOutput
from transformers.models.lxmert.modeling_lxmert import (
    LxmertEmbeddings,
    LxmertLMPredictionHead,
    LxmertPreTrainingHeads,
    LxmertVisualAnswerHead,
    LxmertVisualFeatureEncoder,
    LxmertVisualObjHead,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple

from .attention_calls import REGIONS, TEXT
from .bert_start import BertStart
from .configuration_lxmert import LXMERTConfig
from .pretraining_handover import PretrainingHandover
from .sequence_inputs import (
    check_shape,
    check_text,
    drop_unread,
    embed_words,
    get_first_state,
    sine_encoding,
)
from .task_arguments import PHRASE_ARGS, PRETRAINING_ARGS, REGION_ARGS
from .task_config import plain_answer
from .task_forward import (
    ChoosingTask,
    GroundingTask,
    PooledAnsweringTask,
    ReasoningTask,
    ReferringTask,
    VGPTask,
    score_words,
)
from .task_heads import (
    ClassificationHead,
    GroundingHead,
    PhraseHeads,
    ReferringHead,
    TextFirstPooling,
    TwoLayerHead,
    fit_relationship_head,
)
from .task_losses import Loss, cross_entropy_sum, mean_of, region_classes_sum, region_features_sum
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
from .unpadding import StreamAttention, apply_packed, find_packing


class LXMERTEmbeddings(LxmertEmbeddings):
    """The embeddings of words. Row 0 of every table gets no gradient, as in the public code."""

    def forward(  # type: ignore[override]
        self, inputs_embeds: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> Tensor:
        """Embeds the text: (B, T, D)."""
        # The rank of a token among the tokens of its row, for left and right padding.
        position_ids = (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
        text = inputs_embeds + self.position_embeddings(position_ids) + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(text))


# The name does not contain "Attention": transformers would treat the class as one with exchangeable back ends.
class LXMERTCrossBlock(nn.Module):
    """Attention to the other stream, with the same weights in both directions; `visual_attention` in checkpoints."""

    def __init__(self, config: LXMERTConfig, layer_idx: int):
        super().__init__()
        self.att = StreamAttention(config, layer_idx, is_cross_attention=True)
        self.output = BertSelfOutput(config)


class LXMERTCrossLayer(GradientCheckpointingLayer):
    """Attention of both streams to each other, then self-attention and a feed-forward block in each."""

    def __init__(self, config: LXMERTConfig, layer_idx: int):
        super().__init__()
        self.visual_attention = LXMERTCrossBlock(config, layer_idx)
        self.lang_self_att, self.visn_self_att = (StreamAttentionBlock(config, layer_idx) for _ in range(2))
        self.lang_inter = BertIntermediate(config)
        self.visn_inter = BertIntermediate(config)
        self.lang_output = BertOutput(config)
        self.visn_output = BertOutput(config)

    def forward(
        self,
        text: Tensor,
        regions: Tensor,
        masks: Mapping[Any, Any],
        packing: Columns,
        requests: Mapping[Any, Any],
    ) -> tuple[Tensor, Tensor, list[Any]]:
        """New states of text and regions, and the reports of the four calls; see [`TwoStreams.run_cross`]."""
        states = {TEXT: text, REGIONS: regions}
        attended = {}
        reports = []
        for queries, keys in ((TEXT, REGIONS), (REGIONS, TEXT)):
            call = (queries, keys)
            places = {"query_packing": packing[queries], "key_packing": packing[keys]}
            context, report = self.visual_attention.att(
                states[queries], states[keys], masks[call], **places, **requests[call]
            )
            attended[queries] = self.visual_attention.output(context, states[queries])
            reports.append(report)
        streams = []
        for stream, attention, inner, output in (
            (TEXT, self.lang_self_att, self.lang_inter, self.lang_output),
            (REGIONS, self.visn_self_att, self.visn_inter, self.visn_output),
        ):
            call = (stream, stream)
            hidden, report = attention(attended[stream], masks[call], packing[stream], **requests[call])
            streams.append(output(inner(hidden), hidden))
            reports.append(report)
        return streams[0], streams[1], reports


class LXMERTEncoder(nn.Module):
    """The layers of both streams, then the cross layers; and the embeddings of regions, as in checkpoints."""

    def __init__(self, config: LXMERTConfig):
        super().__init__()
        self.config = config
        self.visn_fc = LxmertVisualFeatureEncoder(config)
        self.layer = nn.ModuleList(StreamLayer(config, index) for index in range(config.l_layers))
        self.r_layers = nn.ModuleList(StreamLayer(config, index) for index in range(config.r_layers))
        self.x_layers = nn.ModuleList(LXMERTCrossLayer(config, index) for index in range(config.x_layers))

    def leave_end_untrained(self, stream: str) -> None:
        """Freezes the last parts of a stream, for a head that reads only the other stream."""
        if len(self.x_layers) == 0:
            layers: Any = self.layer if stream == TEXT else self.r_layers
            layers.requires_grad_(False)
            return
        side = "lang" if stream == TEXT else "visn"
        last = self.x_layers[-1]
        for part in ("self_att", "inter", "output"):
            getattr(last, f"{side}_{part}").requires_grad_(False)

    def forward(self, streams: TwoStreams) -> None:
        """Runs all layers."""
        calls = iter(self.config.attention_calls)
        for layer in (*self.layer, *self.r_layers):
            streams.run_layer(layer, next(calls))
        for layer in self.x_layers:
            streams.run_cross(layer, [next(calls) for _ in range(4)])


@auto_docstring
class LXMERTPreTrainedModel(BertStart, PretrainingHandover, PreTrainedModel):
    config: LXMERTConfig
    base_model_prefix = "lxmert"
    input_modalities = ["image", "text"]
    supports_gradient_checkpointing = True
    _input_embed_layer = "word_embeddings"
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _no_split_modules = ["LXMERTEmbeddings", "StreamLayer", "LXMERTCrossLayer"]
    # The losses are plain means over the current batch.
    accepts_loss_kwargs = False
    # Of a BERT with more layers the first ones are taken.
    _bert_sizes = ("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings")

    @torch.no_grad()
    def _init_weights(self, module):
        """Initialize the weights"""
        super()._init_weights(module)
        if isinstance(module, LxmertLMPredictionHead):
            init.zeros_(module.bias)

    def _leave_regions_untrained(self) -> None:
        """Freezes the last parts of the regions' stream, unless the pooled state reads it."""
        if self.base_model.region_pooler is None:
            self.base_model.encoder.leave_end_untrained(REGIONS)


def _make_answer_head(config: LXMERTConfig, number: int) -> LxmertVisualAnswerHead:
    """The head of `number` answers on the pooled state."""
    return LxmertVisualAnswerHead(ConfigView(config, hidden_size=config.pooled_hidden_size), number)


@auto_docstring(
    custom_intro="""
    The LXMERT encoder: a stream of words and a stream of image regions, without heads.
    """
)
class LXMERTModel(TextFirstPooling, LXMERTPreTrainedModel):
    _other_names = ("LxmertModel",)

    def __init__(self, config: LXMERTConfig, add_pooling_layer: bool = True):
        r"""
        add_pooling_layer (`bool`, *optional*, defaults to `True`):
        Whether to add the poolers.
        """
        super().__init__(config)
        self.embeddings = LXMERTEmbeddings(config)
        self.encoder = LXMERTEncoder(config)
        self.make_poolers(add_pooling_layer)
        self.post_init()

    @can_return_tuple
    @auto_docstring(custom_args=REGION_ARGS)
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        region_features: Tensor | None = None,
        region_boxes: Tensor | None = None,
        region_attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        grounding_queries: Queries | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple | TwoStreamModelOutput:
        inputs_embeds = embed_words(self.embeddings.word_embeddings, input_ids, inputs_embeds)
        longest = self.config.max_text_length
        check_text(inputs_embeds, attention_mask, token_type_ids, longest, "max_position_embeddings")
        visual = (region_features, region_boxes, region_attention_mask)
        width = self.config.visual_feat_dim
        check_regions(*visual, inputs_embeds.shape[0], "visual_feat_dim", width, kwargs)
        num_regions = 0 if region_features is None else region_features.shape[1]
        regions = take_region_inputs(*visual, inputs_embeds, width)

        text_mask = torch.ones_like(inputs_embeds[..., 0], dtype=torch.bool)
        if attention_mask is not None:
            text_mask = attention_mask.bool()
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(text_mask, dtype=torch.long)
        text = self.embeddings(inputs_embeds, text_mask, token_type_ids)
        dtype = self.encoder.visn_fc.visn_fc.weight.dtype
        locations = locate_boxes(regions.boxes, self.config.visual_pos_dim)
        image = self.encoder.visn_fc(regions.features.to(dtype), locations.to(dtype))
        # CODEPATH: off in all public checkpoints; models pre-trained with grounding alignment may have it.
        if self.config.spatial_encoding is not None:
            image = image + sine_encoding(regions.boxes, image.shape[-1]).to(dtype)
        streams = TwoStreams(self.config, text, image, text_mask, regions.mask, grounding_queries, drop_unread(kwargs))
        self.encoder(streams)
        text_states = streams.unpacked(TEXT)
        region_states = streams.unpacked(REGIONS)
        return TwoStreamModelOutput(
            last_hidden_state=text_states,
            pooler_output=self.pool(get_first_state(text_states, text_mask), region_states),
            text_hidden_state=text_states,
            region_hidden_state=region_states[:, :num_regions],
            hidden_states=streams.hidden_states,
            region_hidden_states=streams.region_hidden_states,
            attentions=streams.attentions,
        )


@auto_docstring(
    custom_intro="""
    Output of LXMERT with the heads of pre-training. Logits at padded columns have no meaning. `config.unpad`
    says which logits a training with labels computes.
    """
)
@dataclass
class LXMERTPreTrainingOutput(PreTrainingOutput):
    r"""
    loss (`torch.FloatTensor` of shape `()`, *optional*, returned when any target is given):
        Sum of the losses of the given targets.
    mlm_logits (`torch.FloatTensor` of shape `(batch_size, text_length, vocab_size)`):
        Scores of the vocabulary for every text token.
    region_logits (`torch.FloatTensor` of shape `(batch_size, num_regions, num_object_labels)`):
        Scores of the detector classes for every region; `None` without that head, as the next two.
    attribute_logits (`torch.FloatTensor` of shape `(batch_size, num_regions, num_attr_labels)`):
        Scores of the attributes.
    predicted_features (`torch.FloatTensor` of shape `(batch_size, num_regions, visual_feat_dim)`):
        The predicted features.
    relationship_logits (`torch.FloatTensor` of shape `(batch_size, 2)`):
        Scores of "caption of another image" and "caption of this image".
    answer_logits (`torch.FloatTensor` of shape `(batch_size, num_qa_labels)`):
        Scores of the answers; `None` without that head.
    grounding_logits (`torch.FloatTensor` of shape `(batch_size, num_phrases, num_regions)`):
        Score of every pair of phrase and region, before a sigmoid; without meaning for padded phrases and regions.
        `None` without a grounding head or phrases.
    alignment_logits (`torch.FloatTensor` of shape `(batch_size, num_pairs)`):
        Score of every pair of phrase and region in `alignment_pairs`, before a sigmoid; without meaning for padded
        pairs. `None` without that head or pairs.
    """

    attribute_logits: Tensor | None = None
    predicted_features: Tensor | None = None
    answer_logits: Tensor | None = None


_TARGET_ARGS = """
        masked_regions (`torch.BoolTensor` of shape `(batch_size, num_regions)`, *optional*):
            Regions whose features are replaced by zeros; their boxes do not change.
        predicted_regions (`torch.BoolTensor` of shape `(batch_size, num_regions)`, *optional*):
            The regions whose features are predicted.
        region_feature_targets (`torch.FloatTensor` of shape `(batch_size, num_regions, F)`, *optional*):
            The features to predict, if `region_features` has others in the place of some; `region_features` when not
            given.
        text_only (`torch.BoolTensor` of shape `(batch_size,)`, *optional*):
            Rows of a text-only corpus; their words get a mean of their own.
        region_labels (`torch.LongTensor` of shape `(batch_size, num_regions)`, *optional*):
            Classes of the regions to predict, -100 elsewhere. With `visual_loss="released"` those of all regions.
        region_label_weights (`torch.FloatTensor` of shape `(batch_size, num_regions)`, *optional*):
            Weight of each class, the confidence of the detector; 1 when not given.
        attribute_labels (`torch.LongTensor` of shape `(batch_size, num_regions)`, *optional*):
            The same as `region_labels` for the attributes.
        attribute_label_weights (`torch.FloatTensor` of shape `(batch_size, num_regions)`, *optional*):
            The same as `region_label_weights` for the attributes.
        answer_labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            Index of the answer to the text, -100 for rows without one.
        """


@auto_docstring(
    custom_intro="""
    LXMERT with the heads of pre-training: masked words, class, attribute and feature of masked regions, whether the
    caption belongs to the image, and answers.
    """
)
class LXMERTForPreTraining(PhraseHeads, LXMERTPreTrainedModel):
    _other_names = ("LxmertForPreTraining",)
    _heads_from_pretraining = {name: name for name in ("cls.", "obj_predict_head.", "answer_head.")}
    _tied_weights_keys = {"cls.predictions.decoder.weight": "lxmert.embeddings.word_embeddings.weight"}

    def __init__(self, config: LXMERTConfig):
        super().__init__(config)
        self.lxmert = LXMERTModel(config)
        self.cls = LxmertPreTrainingHeads(config)
        fit_relationship_head(self.cls, config)
        # CODEPATH: the public checkpoints have both; a pre-training without these tasks has not.
        self.obj_predict_head: Any = LxmertVisualObjHead(config) if config.task_obj_predict else None
        self.answer_head: Any = None
        # CODEPATH: as above.
        if config.task_qa:
            self.answer_head = _make_answer_head(config, config.num_qa_labels)
        self.make_phrase_heads()
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.cls.predictions.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear):
        self.cls.predictions.decoder = new_embeddings

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """Resizes the word embeddings, and the bias of the masked words, which is not part of their decoder."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        bias = self.cls.predictions.bias
        size = self.config.vocab_size
        resized = F.pad(bias.data, (0, size - len(bias)))
        self.cls.predictions.bias = nn.Parameter(resized)
        return embeddings

    @can_return_tuple
    @auto_docstring(custom_args=REGION_ARGS + PRETRAINING_ARGS + _TARGET_ARGS + PHRASE_ARGS)
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        region_features: Tensor | None = None,
        region_boxes: Tensor | None = None,
        region_attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        grounding_queries: Queries | None = None,
        masked_regions: Tensor | None = None,
        predicted_regions: Tensor | None = None,
        region_feature_targets: Tensor | None = None,
        labels: Tensor | None = None,
        text_only: Tensor | None = None,
        region_labels: Tensor | None = None,
        region_label_weights: Tensor | None = None,
        attribute_labels: Tensor | None = None,
        attribute_label_weights: Tensor | None = None,
        relationship_labels: Tensor | None = None,
        answer_labels: Tensor | None = None,
        phrase_mask: Tensor | None = None,
        alignment_phrases: Tensor | None = None,
        alignment_pairs: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple | LXMERTPreTrainingOutput:
        texts = (input_ids, attention_mask, token_type_ids)
        shown = hide_regions(region_features, masked_regions)
        inputs = (*texts, shown, region_boxes, region_attention_mask, inputs_embeds)
        outputs = self.lxmert(*inputs, grounding_queries=grounding_queries, return_dict=True, **kwargs)
        logits, losses = self._predict(outputs, attention_mask, region_attention_mask, labels, text_only)
        logits |= self.score_phrases(outputs, phrase_mask, alignment_phrases, alignment_pairs)
        for name, target in (("relationship_labels", relationship_labels), ("answer_labels", answer_labels)):
            check_shape(name, target, outputs.pooler_output.shape[:1])
        if relationship_labels is not None:
            losses.append(cross_entropy_sum(logits["relationship_logits"], relationship_labels))
        if answer_labels is not None:
            if self.answer_head is None:
                raise ValueError("answer_labels are given, but config.task_qa is False.")
            losses.append(cross_entropy_sum(logits["answer_logits"], answer_labels))
        targets = {
            "region_labels": (region_labels, region_label_weights),
            "attribute_labels": (attribute_labels, attribute_label_weights),
        }
        features = region_features if region_feature_targets is None else region_feature_targets
        losses += self._region_losses(logits, targets, predicted_regions, features, region_attention_mask)
        return LXMERTPreTrainingOutput(
            loss=mean_of(*losses), hidden_states=outputs.hidden_states, attentions=outputs.attentions, **logits
        )

    def _predict(
        self, outputs: Any, attention_mask: Any, region_attention_mask: Any, labels: Any, text_only: Any
    ) -> tuple[Fields, list[Loss]]:
        """The scores of all heads, by their names in the output, and the losses of masked words."""
        words = (outputs.text_hidden_state, attention_mask, labels, text_only, self.config.unpad)
        logits, losses = score_words(self.cls.predictions, *words)
        predicted = {"mlm_logits": logits, "relationship_logits": self.cls.seq_relationship(outputs.pooler_output)}
        if self.obj_predict_head is not None:
            head = self.obj_predict_head
            packed = find_packing(region_attention_mask, self.config.unpad)
            states = apply_packed(head.transform, packed, outputs.region_hidden_state)
            names = {"obj": "region_logits", "attr": "attribute_logits", "feat": "predicted_features"}
            predicted |= {names[key]: apply_packed(layer, packed, states) for key, layer in head.decoder_dict.items()}
        if self.answer_head is not None:
            predicted["answer_logits"] = self.answer_head(outputs.pooler_output)
        return predicted, losses

    def _region_losses(
        self, predictions: Columns, targets: Columns, predicted: Any, features: Any, mask: Any
    ) -> list[Loss]:
        """The losses of the given targets of regions."""
        losses = []
        released = self.config.visual_loss == "released"
        normalizer = self.config.visual_loss_normalizer if released else None
        for name, logits in (("region_labels", "region_logits"), ("attribute_labels", "attribute_logits")):
            labels, weights = targets[name]
            if labels is None:
                continue
            if predictions.get(logits) is None:
                raise ValueError(f"{name} are given, but the model has no head for them (task_obj_predict).")
            check_shape(name, labels, tuple(predictions[logits].shape[:2]))
            losses.append(region_classes_sum(predictions[logits], labels, weights, mask, normalizer))
        if predicted is not None and predictions.get("predicted_features") is not None and features is not None:
            check_shape("region_feature_targets", features, tuple(predictions["predicted_features"].shape))
            check_shape("predicted_regions", predicted, tuple(features.shape[:2]))
            losses.append(
                region_features_sum(predictions["predicted_features"], features, predicted, mask, normalizer)
            )
        return losses


@auto_docstring(
    custom_intro="""
    LXMERT for visually grounded paraphrases: predicts which caption belongs to the image, the relation of phrase
    pairs and, optionally, the region of each phrase and the box of the object that each word names.
    """
)
class LXMERTForVGP(VGPTask, LXMERTPreTrainedModel):
    def __init__(self, config: LXMERTConfig):
        super().__init__(config)
        # CODEPATH: "pooled" in the public VGP code, "cls" in the paper's equation 1.
        self.lxmert = LXMERTModel(config, add_pooling_layer=config.identification_pooling == "pooled")
        self.make_vgp_heads()
        if not self.scores_regions:
            self._leave_regions_untrained()
        self.post_init()


@auto_docstring(
    custom_intro="""
    LXMERT for referring expressions: scores how well each region matches the text.
    """
)
class LXMERTForReferringExpression(ReferringTask, LXMERTPreTrainedModel):
    _packs_regions = False

    def __init__(self, config: LXMERTConfig):
        super().__init__(config)
        self.lxmert = LXMERTModel(config, add_pooling_layer=False)
        self.referring_head = ReferringHead(config)
        self.lxmert.encoder.leave_end_untrained(TEXT)
        self.post_init()


@auto_docstring(
    custom_intro="""
    LXMERT for visual question answering: scores the answers of `config.answers` from the pooled state.
    """
)
class LXMERTForVisualQuestionAnswering(PooledAnsweringTask, LXMERTPreTrainedModel):
    _other_names = ("LxmertForQuestionAnswering",)
    # The last layer has a row for each answer, and pre-training has other answers.
    _heads_to_adapt = ("answer_head.",)

    def __init__(self, config: LXMERTConfig):
        super().__init__(config)
        self.lxmert = LXMERTModel(config)
        self.answer_head = _make_answer_head(config, len(config.answers))
        self._leave_regions_untrained()
        self.post_init()

    @torch.no_grad()
    def _adapt_pretraining_weights(self, source: Mapping[str, Tensor], config: Any = None) -> set[str]:
        """
        Starts the head from the answer head of pre-training: its first layers, and the rows of the same answers. Rows
        of other answers are zero (public code). Without `qa_answers` only the first layers are taken.
        """
        weights = {name: value for name, value in self.state_dict().items() if name.startswith("answer_head.")}
        if not source:
            return set()
        adapted = {name for name, value in weights.items() if ".3." not in name and value.shape == source[name].shape}
        for name in adapted:
            weights[name].copy_(source[name])
        answers = self.config.qa_answers or getattr(config, "qa_answers", None)
        if answers is None:
            return adapted
        if len(answers) != len(source["answer_head.logit_fc.3.bias"]):
            scores = len(source["answer_head.logit_fc.3.bias"])
            raise ValueError(f"qa_answers has {len(answers)} answers, but the checkpoint scores {scores}.")
        # Of answers with the same text the first one is trained.
        rows = {plain_answer(answer): row for row, answer in reversed(list(enumerate(answers)))}
        for name in ("answer_head.logit_fc.3.weight", "answer_head.logit_fc.3.bias"):
            weights[name].zero_()
            for row, answer in enumerate(self.config.answers):
                if plain_answer(answer) in rows:
                    weights[name][row].copy_(source[name][rows[plain_answer(answer)]])
            adapted.add(name)
        return adapted


@auto_docstring(
    custom_intro="""
    LXMERT for multiple choice, as in visual commonsense reasoning: scores each choice from the pooled state of
    question and choice.
    """
)
class LXMERTForMultipleChoice(ChoosingTask, LXMERTPreTrainedModel):
    def __init__(self, config: LXMERTConfig):
        super().__init__(config)
        self.lxmert = LXMERTModel(config)
        self.choice_head = ClassificationHead(config.pooled_hidden_size, None, 1, config.classifier_dropout)
        self._leave_regions_untrained()
        self.post_init()


@auto_docstring(
    custom_intro="""
    LXMERT for reasoning over two images (NLVR2): predicts whether the text is true, from the pooled states of the
    text with each image.
    """
)
class LXMERTForVisualReasoning(ReasoningTask, LXMERTPreTrainedModel):
    @property
    def _whole_image(self) -> bool:  # type: ignore[override]
        """Whether the first region is the whole image: where the pooled state reads it."""
        return self.config.fusion_method != "text"

    def __init__(self, config: LXMERTConfig):
        super().__init__(config)
        self.lxmert = LXMERTModel(config)
        size = 2 * config.pooled_hidden_size
        self.reasoning_head = TwoLayerHead(size, size, 2)
        self._leave_regions_untrained()
        self.post_init()


@auto_docstring(
    custom_intro="""
    LXMERT for phrase grounding (Flickr30K Entities): scores the regions for each phrase, from the states of the
    phrase's last token and of the region.
    """
)
class LXMERTForPhraseGrounding(GroundingTask, LXMERTPreTrainedModel):
    def __init__(self, config: LXMERTConfig):
        super().__init__(config)
        self.lxmert = LXMERTModel(config, add_pooling_layer=False)
        self.grounding_head = GroundingHead(config)
        self.make_alignment_head()
        self.post_init()


__all__ = [
    "OLDEST_TRANSFORMERS",
    "LXMERTForMultipleChoice",
    "LXMERTForPhraseGrounding",
    "LXMERTForPreTraining",
    "LXMERTForReferringExpression",
    "LXMERTForVGP",
    "LXMERTForVisualQuestionAnswering",
    "LXMERTForVisualReasoning",
    "LXMERTModel",
    "LXMERTPreTrainedModel",
]

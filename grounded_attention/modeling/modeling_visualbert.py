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
"""PyTorch VisualBERT model.

Shape letters: B batch, C choices, T text, R regions, A aligned words, P phrases, N = T + R, H heads, D hidden.
The sequence has fixed columns, [text T][regions R]. Embeddings and heads are those of the VisualBERT in transformers,
with the same names of weights. The encoder is that of BERT, with every attention back end.
"""

from ..utils.named_types import Columns
from .sequence_inputs import Queries, check_regions

from ..processing.oldest_transformers import OLDEST_TRANSFORMERS  # isort: skip

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_utils import PreTrainedModel
from transformers.models.visual_bert.modeling_visual_bert import (
    VisualBertEmbeddings,
    VisualBertLMPredictionHead,
    VisualBertPreTrainingHeads,
    VisualBertRegionToPhraseAttention,
)
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .bert_start import BertStart
from .configuration_visualbert import VisualBERTConfig
from .pretraining_handover import PretrainingHandover
from .sequence_inputs import (
    check_shape,
    check_text,
    drop_unread,
    embed_words,
    get_first_state,
    locate_queries,
    sine_encoding,
)
from .task_arguments import PHRASE_ARGS, PRETRAINING_ARGS, REGION_ARGS
from .task_forward import (
    AnsweringTask,
    ChoosingTask,
    GroundingTask,
    ReasoningTask,
    ReferringTask,
    VGPTask,
    WordHead,
    leave_untrained,
    predict_hidden,
)
from .task_heads import NO_CANDIDATE, PhraseHeads, ReferringHead, TextFirstPooling, fit_relationship_head
from .task_outputs import GroundedModelOutput, PreTrainingOutput
from .unpadding import (
    Packing,
    StreamAttention,
    UnpaddedEncoder,
    UnpaddedLayer,
    find_packing,
    keep_packing,
    unpack_recorded,
)

_FAMILY_ARGS = """
        region_token_type_ids (`torch.LongTensor` of shape `(batch_size, num_regions)`, *optional*):
            Token types of the regions: 0 (the default, as in the public code), 1 for those of a second image.
        image_text_alignment (`torch.LongTensor` of shape `(batch_size, num_regions, num_words)`, *optional*):
            The text columns of the words for each region, -1 for padding. The mean of their position embeddings is
            added to the region.
        """


class VisualBERTEmbeddings(VisualBertEmbeddings):
    """Text and regions on fixed columns; the weights are those of transformers' class."""

    def __init__(self, config: VisualBERTConfig):
        super().__init__(config)
        self.spatial_encoding = config.spatial_encoding

    def forward(  # type: ignore[override]
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        region_features: Tensor,
        region_token_type_ids: Tensor,
        image_text_alignment: Tensor | None = None,
        region_boxes: Tensor | None = None,
    ) -> Tensor:
        """Embeds the sequence, shape (B, N, D)."""
        # The rank of a token among the tokens of its row, for left and right padding.
        position_ids = (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
        text = inputs_embeds + self.token_type_embeddings(token_type_ids) + self.position_embeddings(position_ids)
        # Every region has position 0 of the position table for regions.
        regions = self.visual_projection(region_features.to(self.visual_projection.weight.dtype))
        regions = regions + self.visual_token_type_embeddings(region_token_type_ids)
        regions = regions + self.visual_position_embeddings(torch.zeros_like(region_token_type_ids))
        if image_text_alignment is not None:
            regions = regions + self.mean_positions(image_text_alignment, position_ids)
        # CODEPATH: off in all public checkpoints; models pre-trained with grounding alignment may have it.
        if self.spatial_encoding is not None and region_boxes is not None:
            regions = regions + sine_encoding(region_boxes, regions.shape[-1]).to(regions.dtype)
        return self.dropout(self.LayerNorm(torch.cat([text, regions], dim=1)))

    def mean_positions(self, image_text_alignment: Tensor, position_ids: Tensor) -> Tensor:
        """Mean position embedding of the words aligned with each region, zeros for none: (B, R, D)."""
        aligned = image_text_alignment >= 0  # (B, R, A)
        columns = image_text_alignment.clamp(min=0).flatten(1)
        places = position_ids.gather(1, columns).view_as(image_text_alignment)
        total = (self.position_embeddings(places) * aligned[..., None]).sum(dim=2)
        return total / aligned.sum(dim=2).clamp(min=1)[..., None]


# The name does not contain "Attention": transformers would treat the class as one with exchangeable back ends.
class VisualBERTPhraseScorer(nn.Module):
    """Scores regions for phrases by the weights of another self-attention, averaged over heads (appendix B.4)."""

    def __init__(self, config: VisualBERTConfig):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, phrase_states: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        """Log of the mean weight of phrases (B, P, D) on the columns (B, N, D) of `mask` (B, N): (B, P, N)."""
        query = self.query(phrase_states).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        key = self.key(states).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, H, P or N, d)
        scores = (query @ key.transpose(2, 3)).float() * query.shape[-1] ** -0.5
        scores = scores.masked_fill(~mask[:, None, None], NO_CANDIDATE).log_softmax(dim=-1)
        return scores.exp().mean(dim=1).clamp(min=torch.finfo(torch.float32).tiny).log()


class VisualBERTClassifier:
    """The head of answers, choices and statements: dropout and one linear layer, `cls` in public checkpoints."""

    config: Any

    def make_classifier(self, num_labels: int, size: int) -> None:
        """Adds the head for states of width `size`."""
        self.dropout = nn.Dropout(self.config.classifier_dropout)
        self.cls = nn.Linear(size, num_labels)

    def classify(self, states: Tensor) -> Tensor:
        """Scores (B, num_labels) of states (B, size)."""
        return self.cls(self.dropout(states))

    _score_answers = _score_choices = _score_classes = classify


@auto_docstring
class VisualBERTPreTrainedModel(BertStart, PretrainingHandover, PreTrainedModel):
    config: VisualBERTConfig
    base_model_prefix = "visual_bert"
    input_modalities = ["image", "text"]
    supports_gradient_checkpointing = True
    _input_embed_layer = "word_embeddings"
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _no_split_modules = ["VisualBERTEmbeddings", "UnpaddedLayer"]
    _can_record_outputs = {"hidden_states": UnpaddedLayer, "attentions": StreamAttention}
    # The losses are plain means over the current batch.
    accepts_loss_kwargs = False

    @torch.no_grad()
    def _init_weights(self, module):
        """Initialize the weights"""
        super()._init_weights(module)
        if isinstance(module, VisualBertLMPredictionHead):
            init.zeros_(module.bias)
        elif isinstance(module, VisualBERTEmbeddings):
            init.copy_(module.position_ids, torch.arange(module.position_ids.shape[-1]).expand((1, -1)))
            # CODEPATH: True in all public checkpoints, whose weights replace these.
            if self.config.special_visual_initialize:
                init.copy_(module.visual_token_type_embeddings.weight, module.token_type_embeddings.weight)
                init.copy_(module.visual_position_embeddings.weight, module.position_embeddings.weight)

    def _derive_from_bert(self, weights: dict[str, Tensor], prefix: str, wanted: set[str]) -> set[str]:
        """Token types and positions of the regions start as copies of those of the text."""
        copied = set()
        # CODEPATH: True in all public checkpoints, which started from BERT this way.
        for part in ("token_type", "position") if self.config.special_visual_initialize else ():
            target = f"{prefix}embeddings.visual_{part}_embeddings.weight"
            if target in wanted:
                weights[target].copy_(weights[f"{prefix}embeddings.{part}_embeddings.weight"])
                copied.add(target)
        return copied


@auto_docstring(
    custom_intro="""
    The VisualBERT encoder: one stream of words and image regions, without heads.
    """
)
class VisualBERTModel(TextFirstPooling, VisualBERTPreTrainedModel):
    _other_names = ("VisualBertModel",)

    def __init__(self, config: VisualBERTConfig, add_pooling_layer: bool = True):
        r"""
        add_pooling_layer (`bool`, *optional*, defaults to `True`):
        Whether to add the poolers.
        """
        super().__init__(config)
        self.embeddings = VisualBERTEmbeddings(config)
        self.encoder = UnpaddedEncoder(config)
        self.make_poolers(add_pooling_layer)
        # CODEPATH: off in all public checkpoints; the paper's model without early fusion has it.
        self.additional_layer = UnpaddedLayer(config) if config.bypass_transformer else None
        self.post_init()

    @unpack_recorded
    @merge_with_config_defaults
    @capture_outputs
    @auto_docstring(custom_args=REGION_ARGS + _FAMILY_ARGS)
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        region_features: Tensor | None = None,
        region_boxes: Tensor | None = None,
        region_attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        region_token_type_ids: Tensor | None = None,
        image_text_alignment: Tensor | None = None,
        grounding_queries: Queries | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple | GroundedModelOutput:
        inputs_embeds = embed_words(self.embeddings.word_embeddings, input_ids, inputs_embeds)
        longest = self.config.max_text_length
        check_text(inputs_embeds, attention_mask, token_type_ids, longest, "max_position_embeddings")
        batch_size, text_length = inputs_embeds.shape[:2]
        visual = (region_features, region_boxes, region_attention_mask)
        width = self.config.visual_embedding_dim
        reads_boxes = self.config.spatial_encoding is not None
        check_regions(*visual, batch_size, "visual_embedding_dim", width, kwargs, reads_boxes)
        asked = grounding_queries is not None or kwargs.get("attention_queries")
        if asked and self.additional_layer is not None:
            raise ValueError(
                "grounding_queries are given, but with config.bypass_transformer the layers read only text, without "
                "attention to regions."
            )
        attention_kwargs = drop_unread(kwargs)

        if region_features is None:
            region_features = inputs_embeds.new_zeros(batch_size, 0, self.config.visual_embedding_dim)
            region_attention_mask = None
            region_token_type_ids = None
            image_text_alignment = None
        num_regions = region_features.shape[1]
        if image_text_alignment is not None:
            check_shape("image_text_alignment", image_text_alignment, (batch_size, num_regions, "num_words"))
            if not torch.compiler.is_compiling() and (image_text_alignment >= text_length).any():
                raise ValueError(
                    f"image_text_alignment contains column {int(image_text_alignment.max())}, but the text has "
                    f"{text_length} tokens; expected text columns, -1 for padding."
                )
        check_shape("region_token_type_ids", region_token_type_ids, (batch_size, num_regions))
        ones = torch.ones(batch_size, text_length + num_regions, device=inputs_embeds.device, dtype=torch.bool)
        if attention_mask is None:
            text_mask = ones[:, :text_length]
        else:
            text_mask = attention_mask.bool()
        if region_attention_mask is None:
            region_mask = ones[:, text_length:]
        else:
            region_mask = region_attention_mask.bool()
        embedding_output = self.embeddings(
            inputs_embeds=inputs_embeds,
            attention_mask=text_mask,
            token_type_ids=torch.zeros_like(text_mask, dtype=torch.long) if token_type_ids is None else token_type_ids,
            region_features=region_features,
            region_token_type_ids=(
                torch.zeros_like(region_mask, dtype=torch.long)
                if region_token_type_ids is None
                else region_token_type_ids
            ),
            image_text_alignment=image_text_alignment,
            region_boxes=region_boxes if num_regions else None,
        )
        if grounding_queries is not None:
            attention_kwargs["attention_queries"] = locate_queries(grounding_queries, text_length)
        columns = torch.cat([text_mask, region_mask], dim=1)
        if self.additional_layer is None:
            packing = find_packing(columns, self.config.unpad)
            sequence_output = self._encode(embedding_output, columns, packing, **attention_kwargs)
        else:
            packing = find_packing(text_mask, self.config.unpad)
            text_states = self._encode(embedding_output[:, :text_length], text_mask, packing, **attention_kwargs)
            states = torch.cat([text_states, embedding_output[:, text_length:]], dim=1)
            mask = create_bidirectional_mask(config=self.config, inputs_embeds=states, attention_mask=columns)
            sequence_output = self.additional_layer(states, mask, **attention_kwargs)
        text_output, region_output = sequence_output.split([text_length, num_regions], dim=1)
        outputs = GroundedModelOutput(
            last_hidden_state=sequence_output,
            pooler_output=self.pool(get_first_state(text_output, text_mask), region_output),
            text_hidden_state=text_output,
            region_hidden_state=region_output,
        )
        return keep_packing(outputs, packing)

    def _encode(self, embeddings: Tensor, columns: Tensor, packing: Packing | None, **kwargs: Any) -> Tensor:
        """The encoder's states for the valid columns of `columns` (B, N)."""
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=embeddings, attention_mask=columns)
        return self.encoder(embeddings, mask, packing, **kwargs)


@auto_docstring(
    custom_intro="""
    VisualBERT with the heads of its pre-training: masked words, and whether the second of two captions belongs to the
    image.
    """
)
class VisualBERTForPreTraining(WordHead, PhraseHeads, VisualBERTPreTrainedModel):
    _other_names = ("VisualBertForPreTraining",)
    _heads_from_pretraining = {"cls.": "cls."}
    _tied_weights_keys = {
        "cls.predictions.decoder.bias": "cls.predictions.bias",
        "cls.predictions.decoder.weight": "visual_bert.embeddings.word_embeddings.weight",
    }

    def __init__(self, config: VisualBERTConfig):
        super().__init__(config)
        self.visual_bert = VisualBERTModel(config)
        self.cls = VisualBertPreTrainingHeads(config)
        fit_relationship_head(self.cls, config)
        self.make_phrase_heads()
        self.post_init()

    @can_return_tuple
    @auto_docstring(custom_args=REGION_ARGS + _FAMILY_ARGS + PRETRAINING_ARGS + PHRASE_ARGS)
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        region_features: Tensor | None = None,
        region_boxes: Tensor | None = None,
        region_attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        region_token_type_ids: Tensor | None = None,
        image_text_alignment: Tensor | None = None,
        grounding_queries: Queries | None = None,
        labels: Tensor | None = None,
        relationship_labels: Tensor | None = None,
        phrase_mask: Tensor | None = None,
        alignment_phrases: Tensor | None = None,
        alignment_pairs: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple | PreTrainingOutput:
        texts = (input_ids, attention_mask, token_type_ids)
        regions = (region_features, region_boxes)
        inputs = (*texts, *regions, region_attention_mask, inputs_embeds, region_token_type_ids, image_text_alignment)
        outputs = self.visual_bert(*inputs, grounding_queries=grounding_queries, return_dict=True, **kwargs)
        return predict_hidden(
            outputs,
            word_head=self.cls.predictions,
            relationship_head=self.cls.seq_relationship,
            attention_mask=attention_mask,
            labels=labels,
            relationship_labels=relationship_labels,
            phrase_scores=self.score_phrases(outputs, phrase_mask, alignment_phrases, alignment_pairs),
            unpad=self.config.unpad,
        )


@auto_docstring(
    custom_intro="""
    VisualBERT for visually grounded paraphrases: predicts which caption belongs to the image, the relation of phrase
    pairs and, optionally, the region of each phrase and the box of the object that each word names.
    """
)
class VisualBERTForVGP(VGPTask, VisualBERTPreTrainedModel):
    def __init__(self, config: VisualBERTConfig):
        super().__init__(config)
        self.visual_bert = VisualBERTModel(config)
        self.make_vgp_heads()
        # CODEPATH: "pooled" in the public VGP code, "cls" in the paper's equation 1.
        if config.identification_pooling != "pooled":
            leave_untrained(self.visual_bert.pooler, self.visual_bert.region_pooler)
        self.post_init()


@auto_docstring(
    custom_intro="""
    VisualBERT for referring expressions: finds the region that the text describes.
    """
)
class VisualBERTForReferringExpression(ReferringTask, VisualBERTPreTrainedModel):
    def __init__(self, config: VisualBERTConfig):
        super().__init__(config)
        self.visual_bert = VisualBERTModel(config)
        self.referring_head = ReferringHead(config)
        leave_untrained(self.visual_bert.pooler, self.visual_bert.region_pooler)
        self.post_init()


@auto_docstring(
    custom_intro="""
    VisualBERT for visual question answering: scores the answers of `config.answers` from the state of the `[MASK]`
    that stands for the answer.
    """
)
class VisualBERTForVisualQuestionAnswering(VisualBERTClassifier, AnsweringTask, VisualBERTPreTrainedModel):
    _other_names = ("VisualBertForQuestionAnswering",)

    def __init__(self, config: VisualBERTConfig):
        super().__init__(config)
        self.visual_bert = VisualBERTModel(config)
        self.make_classifier(len(config.answers), config.hidden_size)
        leave_untrained(self.visual_bert.pooler, self.visual_bert.region_pooler)
        self.post_init()

    def _find_answers(self, text_states: Tensor, attention_mask: Tensor | None) -> Tensor:
        """The column of the second-to-last token of each row, before `[SEP]` (public code)."""
        batch_size, text_length = text_states.shape[:2]
        if attention_mask is None:
            return torch.full((batch_size,), text_length - 2, device=text_states.device)
        columns = torch.arange(text_length, device=text_states.device)
        last = torch.where(attention_mask.bool(), columns, 0).amax(dim=1)
        return (last - 1).clamp(min=0)


@auto_docstring(
    custom_intro="""
    VisualBERT for multiple choice, as in visual commonsense reasoning: scores each choice from the pooled state of
    question and choice.
    """
)
class VisualBERTForMultipleChoice(VisualBERTClassifier, ChoosingTask, VisualBERTPreTrainedModel):
    _other_names = ("VisualBertForMultipleChoice",)

    def __init__(self, config: VisualBERTConfig):
        super().__init__(config)
        self.visual_bert = VisualBERTModel(config)
        self.make_classifier(1, config.pooled_hidden_size)
        self.post_init()


@auto_docstring(
    custom_intro="""
    VisualBERT for reasoning over two images (NLVR2): predicts whether the text is true for the two images. The regions
    of the second image follow those of the first, with token type 1.
    """
)
class VisualBERTForVisualReasoning(VisualBERTClassifier, ReasoningTask, VisualBERTPreTrainedModel):
    _other_names = ("VisualBertForVisualReasoning",)

    def __init__(self, config: VisualBERTConfig):
        super().__init__(config)
        self.visual_bert = VisualBERTModel(config)
        self.make_classifier(len(config.answers), config.pooled_hidden_size)
        self.post_init()

    def _encode_images(self, inputs: Columns, kwargs: Columns) -> Any:
        return self.base_model(**inputs, return_dict=True, **kwargs)


@auto_docstring(
    custom_intro="""
    VisualBERT for phrase grounding (Flickr30K Entities): scores the regions for each phrase, from the state of the
    phrase's last token.
    """
)
class VisualBERTForPhraseGrounding(WordHead, GroundingTask, VisualBERTPreTrainedModel):
    _other_names = ("VisualBertForRegionToPhraseAlignment",)
    _heads_from_pretraining = {name: name for name in ("cls.", "alignment_head.")}
    _tied_weights_keys = {
        "cls.predictions.decoder.bias": "cls.predictions.bias",
        "cls.predictions.decoder.weight": "visual_bert.embeddings.word_embeddings.weight",
    }

    def __init__(self, config: VisualBERTConfig):
        super().__init__(config)
        self.visual_bert = VisualBERTModel(config)
        self.cls = VisualBertPreTrainingHeads(config)
        fit_relationship_head(self.cls, config)
        leave_untrained(self.visual_bert.pooler, self.visual_bert.region_pooler, self.cls)
        self.attention: Any
        # CODEPATH: public checkpoints have the single head; the paper describes the other scorer.
        if config.phrase_scorer == "single_head":
            self.attention = VisualBertRegionToPhraseAttention(config)
            leave_untrained(self.attention.value)
        else:
            self.attention = VisualBERTPhraseScorer(config)
        self.make_alignment_head()
        self.post_init()

    def _score_pairs(  # type: ignore[override]
        self, phrase_states: Tensor, outputs: Any, text_mask: Tensor, region_mask: Tensor
    ) -> Tensor:
        """Scores (B, P, R) of the regions for phrases (B, P, D)."""
        # CODEPATH: as above.
        if self.config.phrase_scorer == "single_head":
            return self.attention(phrase_states, outputs.region_hidden_state, region_mask)
        mask = torch.cat([text_mask, region_mask], dim=1)
        return self.attention(phrase_states, outputs.last_hidden_state, mask)[..., text_mask.shape[1] :]


__all__ = [
    "OLDEST_TRANSFORMERS",
    "VisualBERTForMultipleChoice",
    "VisualBERTForPhraseGrounding",
    "VisualBERTForPreTraining",
    "VisualBERTForReferringExpression",
    "VisualBERTForVGP",
    "VisualBERTForVisualQuestionAnswering",
    "VisualBERTForVisualReasoning",
    "VisualBERTModel",
    "VisualBERTPreTrainedModel",
]

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The forward functions of tasks for models with two streams; a family adds its heads and their names of weights.

A family's class inherits from one of these classes first, then from its `PreTrainedModel`. Further inputs of a base
model, such as `task_ids` of ViLBERT, are passed on.

Shape letters: B batch, C choices, T text, R regions, P phrases, E region width, F pooled width.
"""

from collections.abc import Mapping
from typing import Any

import torch
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple

from .sequence_inputs import Choices
from .task_arguments import (
    ALIGNMENT_ARGS,
    PHRASE_GROUNDING_ARGS,
    POOLED_ANSWER_ARGS,
    REFERRING_ARGS,
    TWO_IMAGE_ARGS,
    TWO_STREAM_ARGS,
    VGP_ARGS,
)
from .task_forward import choose_region, ground_phrases, score_choices, score_classes, score_pooled_answers
from .task_heads import AlignmentScorer, VGPHeads
from .task_outputs import MultipleChoiceOutput, TaskOutput, VGPOutput
from .two_images import split_images


def repeat_rows(kwargs: Mapping[str, Any], times: int) -> dict[str, Any]:
    """Further inputs of a base model with one value per row, `task_ids`, for `times` rows of each example."""
    tasks = kwargs.get("task_ids")
    return dict(kwargs) if tasks is None else {**kwargs, "task_ids": tasks.reshape(-1).repeat_interleave(times)}


class TwoStreamVGP(VGPHeads):
    """Visually grounded paraphrases."""

    config: Any
    base_model: Any

    @can_return_tuple
    @auto_docstring(custom_args=TWO_STREAM_ARGS + VGP_ARGS + ALIGNMENT_ARGS)
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        region_features: torch.Tensor | None = None,
        region_boxes: torch.Tensor | None = None,
        region_attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        grounding_queries: dict[str, tuple[torch.Tensor, torch.Tensor]] | None = None,
        phrase_mask: torch.Tensor | None = None,
        phrase_pairs: torch.Tensor | None = None,
        phrase_regions: torch.Tensor | None = None,
        identification_labels: torch.Tensor | None = None,
        vgp_labels: torch.Tensor | None = None,
        alignment_phrases: torch.Tensor | None = None,
        alignment_pairs: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple | VGPOutput:
        outputs, pred_boxes = self.encode_for_vgp(
            self.base_model,
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            region_features=region_features,
            region_boxes=region_boxes,
            region_attention_mask=region_attention_mask,
            inputs_embeds=inputs_embeds,
            grounding_queries=grounding_queries,
            **kwargs,
        )
        labels, aligned = (identification_labels, vgp_labels), (alignment_phrases, alignment_pairs)
        return self.score_vgp(outputs, pred_boxes, attention_mask, phrase_mask, phrase_pairs, *labels, *aligned)


class TwoStreamReferring:
    """Referring expressions."""

    config: Any
    base_model: Any
    _score_regions: Any  # region states (B, R, E) to scores (B, R, 1)

    @can_return_tuple
    @auto_docstring(custom_args=TWO_STREAM_ARGS + REFERRING_ARGS)
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        region_features: torch.Tensor | None = None,
        region_boxes: torch.Tensor | None = None,
        region_attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        grounding_queries: dict[str, tuple[torch.Tensor, torch.Tensor]] | None = None,
        region_targets: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple | TaskOutput:
        outputs = self.base_model(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            region_features=region_features,
            region_boxes=region_boxes,
            region_attention_mask=region_attention_mask,
            inputs_embeds=inputs_embeds,
            grounding_queries=grounding_queries,
            return_dict=True,
            **kwargs,
        )
        return choose_region(self._score_regions, outputs, region_attention_mask, region_targets)


class TwoStreamAnswering:
    """Visual question answering, from the pooled state."""

    config: Any
    base_model: Any
    _score_answers: Any  # pooled states (B, F) to scores (B, num_labels)

    @can_return_tuple
    @auto_docstring(custom_args=TWO_STREAM_ARGS + POOLED_ANSWER_ARGS)
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        region_features: torch.Tensor | None = None,
        region_boxes: torch.Tensor | None = None,
        region_attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        grounding_queries: dict[str, tuple[torch.Tensor, torch.Tensor]] | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple | TaskOutput:
        outputs = self.base_model(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            region_features=region_features,
            region_boxes=region_boxes,
            region_attention_mask=region_attention_mask,
            inputs_embeds=inputs_embeds,
            grounding_queries=grounding_queries,
            return_dict=True,
            **kwargs,
        )
        return score_pooled_answers(self._score_answers, outputs, labels, self.config.vqa_loss)


class TwoStreamChoosing:
    """Multiple choice, from the pooled state."""

    config: Any
    base_model: Any
    _score_choices: Any  # pooled states (B * C, F) to scores (B * C, 1)

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        region_features: torch.Tensor | None = None,
        region_boxes: torch.Tensor | None = None,
        region_attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        grounding_queries: dict[str, tuple[torch.Tensor, torch.Tensor]] | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple | MultipleChoiceOutput:
        r"""
        input_ids (`torch.LongTensor` of shape `(batch_size, num_choices, text_length)`, *optional*):
            Tokens of question and choice.
        attention_mask (`torch.Tensor` of shape `(batch_size, num_choices, text_length)`, *optional*):
            1 for tokens, 0 for padding.
        token_type_ids (`torch.LongTensor` of shape `(batch_size, num_choices, text_length)`, *optional*):
            Types of the tokens: 0 the question, 1 the choice.
        region_features (`torch.FloatTensor` of shape `(batch_size, num_regions, region_feature_size)`, *optional*):
            Features of the image regions, shared by all choices. All region inputs can also
            have a dimension `num_choices` after the first. Without them the input is text only.
        region_boxes (`torch.FloatTensor` of shape `(batch_size, num_regions, 4)`, *optional*):
            `(x1, y1, x2, y2)` of each region divided by image width and height, in [0, 1].
        region_attention_mask (`torch.Tensor` of shape `(batch_size, num_regions)`, *optional*):
            1 for regions, 0 for padding. Rows without regions are text only.
        inputs_embeds (`torch.FloatTensor` of shape `(batch_size, num_choices, text_length, hidden_size)`, *optional*):
            Word embeddings instead of `input_ids`.
        grounding_queries (`dict`, *optional*):
            The attention to report, see [`ViLBertModel`]; one row per choice, with the choices of an item
            consecutive, or with a dimension `num_choices` after the first.
        labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            Index of the right choice, -100 to ignore an item.
        """
        choices = Choices.find(input_ids, inputs_embeds)
        outputs = self.base_model(
            choices.flatten("input_ids", input_ids),
            attention_mask=choices.flatten("attention_mask", attention_mask),
            token_type_ids=choices.flatten("token_type_ids", token_type_ids),
            region_features=choices.repeat(region_features, 3),
            region_boxes=choices.repeat(region_boxes, 3),
            region_attention_mask=choices.repeat(region_attention_mask, 2),
            inputs_embeds=choices.flatten("inputs_embeds", inputs_embeds),
            grounding_queries=choices.flatten_queries(grounding_queries),
            return_dict=True,
            **repeat_rows(kwargs, choices.num_choices),
        )
        return score_choices(self._score_choices, outputs, choices, labels, self.config.choice_loss)


class TwoStreamReasoning:
    """Reasoning over two images: the pooled states of the text with each image."""

    config: Any
    base_model: Any
    _whole_image: bool
    _score_classes: Any  # pooled states of both images (B, 2 F) to scores (B, 2)

    @can_return_tuple
    @auto_docstring(custom_args=TWO_STREAM_ARGS + TWO_IMAGE_ARGS)
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        region_features: torch.Tensor | None = None,
        region_boxes: torch.Tensor | None = None,
        region_attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        region_token_type_ids: torch.Tensor | None = None,
        grounding_queries: dict[str, tuple[torch.Tensor, torch.Tensor]] | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple | TaskOutput:
        inputs = split_images(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            region_features=region_features,
            region_boxes=region_boxes,
            region_attention_mask=region_attention_mask,
            inputs_embeds=inputs_embeds,
            region_token_type_ids=region_token_type_ids,
            grounding_queries=grounding_queries,
            whole_image=self._whole_image,
        )
        outputs = self.base_model(**inputs, return_dict=True, **repeat_rows(kwargs, 2))
        outputs.pooler_output = outputs.pooler_output.unflatten(0, (-1, 2)).flatten(1)
        return score_classes(self._score_classes, outputs, labels)


class TwoStreamGrounding(AlignmentScorer):
    """Phrase grounding."""

    config: Any
    base_model: Any
    grounding_head: Any

    @can_return_tuple
    @auto_docstring(custom_args=TWO_STREAM_ARGS + PHRASE_GROUNDING_ARGS + ALIGNMENT_ARGS)
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        region_features: torch.Tensor | None = None,
        region_boxes: torch.Tensor | None = None,
        region_attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        grounding_queries: dict[str, tuple[torch.Tensor, torch.Tensor]] | None = None,
        phrase_mask: torch.Tensor | None = None,
        phrase_regions: torch.Tensor | None = None,
        alignment_phrases: torch.Tensor | None = None,
        alignment_pairs: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple | TaskOutput:
        outputs = self.base_model(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            region_features=region_features,
            region_boxes=region_boxes,
            region_attention_mask=region_attention_mask,
            inputs_embeds=inputs_embeds,
            grounding_queries=grounding_queries,
            return_dict=True,
            **kwargs,
        )
        return ground_phrases(
            lambda phrases, found, text_mask, region_mask: self.grounding_head(phrases, found.region_hidden_state),
            outputs,
            phrase_mask=phrase_mask,
            attention_mask=attention_mask,
            region_attention_mask=region_attention_mask,
            phrase_regions=phrase_regions,
            alignment_logits=self.score_alignment(outputs, alignment_phrases, alignment_pairs),
        )


__all__ = [
    "TwoStreamAnswering",
    "TwoStreamChoosing",
    "TwoStreamGrounding",
    "TwoStreamReasoning",
    "TwoStreamReferring",
    "TwoStreamVGP",
]

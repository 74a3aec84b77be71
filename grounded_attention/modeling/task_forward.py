# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What each task computes from a base model's output, the same for all families: scores, loss and output.

A class of a family inherits from one of the `...Task` classes first, then from its `PreTrainedModel`, and adds its
heads and their names of weights. Inputs that only some families have (`FamilyInputs`) are passed on to the base model.
`outputs` is a base model's output, see `task_outputs.py`. With `unpad`, heads that score every column skip padding.

Shape letters: B batch, C choices, T text, R regions, P phrases, D text width, E region width, F pooled width.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple

from ..utils.named_types import Columns, Fields
from .sequence_inputs import Choices, Queries, check_shape
from .task_arguments import (
    ALIGNMENT_ARGS,
    ANSWER_ARGS,
    CHOICE_ARGS,
    PHRASE_GROUNDING_ARGS,
    POOLED_ANSWER_ARGS,
    REFERRING_ARGS,
    REGION_ARGS,
    TWO_IMAGE_ARGS,
    VGP_ARGS,
    FamilyInputs,
)
from .task_heads import NO_CANDIDATE, AlignmentScorer, VGPHeads
from .task_losses import (
    UNLABELLED,
    Loss,
    answer_sum,
    choice_sum,
    cross_entropy_sum,
    grounding_divergence_sum,
    is_distribution,
    mean_of,
    region_sum,
)
from .task_outputs import MultipleChoiceOutput, PreTrainingOutput, TaskOutput, VGPOutput
from .unpadding import apply_packed, find_packing

Head = Callable[[Tensor], Tensor]


def predict_hidden(
    outputs: Any,
    *,
    word_head: nn.Module,
    region_head: nn.Module | None = None,
    relationship_head: Head | None = None,
    attention_mask: Tensor | None = None,
    region_attention_mask: Tensor | None = None,
    labels: Tensor | None = None,
    text_only: Tensor | None = None,
    region_targets: Mapping[str, Tensor | None] | None = None,
    relationship_labels: Tensor | None = None,
    region_loss: Callable[[Any, Columns], Loss | None] | None = None,
    phrase_scores: Mapping[str, Tensor | None] | None = None,
    unpad: bool = False,
) -> PreTrainingOutput:
    """Pre-training: masked words and, with these heads, masked regions and whether caption and image match."""
    states = outputs.text_hidden_state
    targets = region_targets or {}
    mlm_logits, losses = score_words(word_head, states, attention_mask, labels, text_only, unpad)
    region_logits = None
    relationship_logits = None
    if region_head is not None:
        wanted = _predicted_regions(targets) if region_head.training else None
        check_shape("targets of regions", wanted, outputs.region_hidden_state.shape[:2])
        packed_regions = find_packing(region_attention_mask if wanted is None else wanted, unpad)
        region_logits = apply_packed(region_head, packed_regions, outputs.region_hidden_state)
    if relationship_head is not None:
        relationship_logits = relationship_head(outputs.pooler_output)

    check_shape("relationship_labels", relationship_labels, mlm_logits.shape[:1])
    of_regions = None if region_loss is None else region_loss(region_logits, targets)
    losses += [] if of_regions is None else [of_regions]
    if relationship_labels is not None:
        if relationship_logits is None:
            raise ValueError("relationship_labels are given, but config.relationship_head is False.")
        losses.append(cross_entropy_sum(relationship_logits, relationship_labels))
    return PreTrainingOutput(
        loss=mean_of(*losses),
        mlm_logits=mlm_logits,
        region_logits=region_logits,
        relationship_logits=relationship_logits,
        **(phrase_scores or {}),
        hidden_states=outputs.hidden_states,
        attentions=outputs.attentions,
    )


def score_words(
    head: nn.Module, states: Tensor, mask: Any, labels: Any, text_only: Any, unpad: bool
) -> tuple[Tensor, list[Loss]]:
    """Scores (B, T, V) of the vocabulary, and the losses of masked words. With `text_only`, one mean for words with
    images and one for words of text-only rows (two data streams, VL-BERT public code). With `unpad`, training scores
    only words with a label.
    """
    check_shape("labels", labels, states.shape[:2])
    check_shape("text_only", text_only, states.shape[:1])
    alone = labels is not None and head.training
    packing = find_packing(labels != UNLABELLED if alone else mask, unpad)
    scored = head(states if packing is None else packing.pack(states))
    logits = scored if packing is None else packing.unpack(scored)
    groups = [] if labels is None else [labels]
    if labels is not None and text_only is not None:
        text = text_only.bool()[:, None]
        groups = [labels.masked_fill(rows, UNLABELLED) for rows in (text, ~text)]
    if packing is None or not alone:
        return logits, [cross_entropy_sum(logits, group) for group in groups]
    return logits, [cross_entropy_sum(scored, packing.pack(group)) for group in groups]  # without rows of zeros


def _predicted_regions(targets: Columns) -> Tensor | None:
    """The regions (B, R) with a target; `None` without targets."""
    labels = targets.get("region_labels")
    probs = targets.get("region_label_probs")
    if labels is not None:
        return labels != UNLABELLED
    if probs is None:
        return targets.get("predicted_regions")
    return is_distribution(probs)


def task_output(outputs: Any, loss: Tensor | None, logits: Tensor, **others: Any) -> TaskOutput:
    """The output of a head, with what the base model's output has of each layer."""
    layers = {"hidden_states": outputs.hidden_states, "attentions": outputs.attentions}
    return TaskOutput(loss=loss, logits=logits, **others, **layers)


def choose_region(
    head: Head,
    outputs: Any,
    region_attention_mask: Tensor | None,
    region_targets: Tensor | None,
    unpad: bool = False,
) -> TaskOutput:
    """Referring expressions: scores every region; [`NO_CANDIDATE`] for padding."""
    packed_regions = find_packing(region_attention_mask, unpad)
    logits = apply_packed(head, packed_regions, outputs.region_hidden_state).squeeze(-1)
    padded = None if region_attention_mask is None else ~region_attention_mask.bool()
    loss = None
    if region_targets is not None:
        check_shape("region_targets", region_targets, logits.shape)
        targets = region_targets.float()
        loss = mean_of(region_sum(logits, targets if padded is None else targets.masked_fill(padded, -1.0)))
    if padded is not None:
        logits = logits.masked_fill(padded, NO_CANDIDATE)
    return task_output(outputs, loss, logits)


def score_answers(
    head: Head, outputs: Any, answer_positions: Tensor | None, labels: Tensor | None, form: str
) -> TaskOutput:
    """Visual question answering: scores every answer, from the state of the `[MASK]` that stands for the answer."""
    text_states = outputs.text_hidden_state
    if answer_positions is None:
        raise ValueError("answer_positions are missing: give the text column of the [MASK], as the processor does.")
    check_shape("answer_positions", answer_positions, text_states.shape[:1])
    index = answer_positions[:, None, None].expand(-1, 1, text_states.shape[-1])
    return answer_output(head(text_states.gather(1, index)[:, 0]), outputs, labels, form)


def answer_output(logits: Tensor, outputs: Any, labels: Tensor | None, form: str) -> TaskOutput:
    loss = None
    if labels is not None:
        check_shape("labels", labels, logits.shape)
        loss = mean_of(answer_sum(logits, labels, form))
    return task_output(outputs, loss, logits)


def leave_untrained(*modules: nn.Module | None) -> None:
    """Freezes modules that a class has only for the names in checkpoints; its loss does not depend on them."""
    for module in modules:
        if module is not None:
            module.requires_grad_(False)


def repeat_tasks(inputs: Columns, times: int) -> Fields:
    """Inputs of a base model of which `task_ids`, one value per row, is that of `times` rows of each example."""
    tasks = inputs.get("task_ids")
    if tasks is None:
        return dict(inputs)
    return {**inputs, "task_ids": tasks.reshape(-1).repeat_interleave(times)}


class WordHead:
    """Finds the decoder of a head of masked words with the name `cls.predictions`."""

    cls: Any

    def get_output_embeddings(self) -> nn.Module:
        return self.cls.predictions.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear):
        self.cls.predictions.decoder = new_embeddings
        self.cls.predictions.bias = new_embeddings.bias


class Task:
    """A head on the output of the base model."""

    config: Any
    base_model: Any

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        """The output of the base model."""
        return self.base_model(*args, return_dict=True, **kwargs)


class VGPTask(Task, VGPHeads):
    """Visually grounded paraphrases."""

    @can_return_tuple
    @auto_docstring(custom_args=REGION_ARGS + VGP_ARGS + ALIGNMENT_ARGS)
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
        phrase_mask: Tensor | None = None,
        phrase_pairs: Tensor | None = None,
        phrase_regions: Tensor | None = None,
        identification_labels: Tensor | None = None,
        vgp_labels: Tensor | None = None,
        alignment_phrases: Tensor | None = None,
        alignment_pairs: Tensor | None = None,
        **kwargs: Unpack[FamilyInputs],
    ) -> tuple | VGPOutput:
        sequence = (input_ids, attention_mask, token_type_ids, region_features, region_boxes, region_attention_mask)
        inputs = {"inputs_embeds": inputs_embeds, "grounding_queries": grounding_queries, **kwargs}
        outputs, boxes = self.encode_for_vgp(self.base_model, *sequence, **inputs)
        labels = (identification_labels, vgp_labels)
        aligned = (alignment_phrases, alignment_pairs)
        return self.score_vgp(outputs, boxes, attention_mask, phrase_mask, phrase_pairs, *labels, *aligned)


class ReferringTask(Task):
    """Referring expressions."""

    referring_head: Any
    _packs_regions = True  # whether the head skips padded regions with `config.unpad`

    def _score_regions(self, states: Tensor) -> Tensor:
        """Region states (B, R, E) to scores (B, R, 1)."""
        return self.referring_head(states)

    @can_return_tuple
    @auto_docstring(custom_args=REGION_ARGS + REFERRING_ARGS)
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
        region_targets: Tensor | None = None,
        **kwargs: Unpack[FamilyInputs],
    ) -> tuple | TaskOutput:
        sequence = (input_ids, attention_mask, token_type_ids, region_features, region_boxes, region_attention_mask)
        outputs = self.encode(*sequence, inputs_embeds, grounding_queries=grounding_queries, **kwargs)
        unpad = self._packs_regions and self.config.unpad
        return choose_region(self._score_regions, outputs, region_attention_mask, region_targets, unpad)


class AnsweringTask(Task):
    """Visual question answering, from the state of the `[MASK]` that stands for the answer."""

    answer_head: Any

    def _score_answers(self, states: Tensor) -> Tensor:
        """States (B, D) to scores (B, num_labels)."""
        return self.answer_head(states)

    @can_return_tuple
    @auto_docstring(custom_args=REGION_ARGS + ANSWER_ARGS)
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
        answer_positions: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[FamilyInputs],
    ) -> tuple | TaskOutput:
        sequence = (input_ids, attention_mask, token_type_ids, region_features, region_boxes, region_attention_mask)
        outputs = self.encode(*sequence, inputs_embeds, grounding_queries=grounding_queries, **kwargs)
        if answer_positions is None:
            answer_positions = self._find_answers(outputs.text_hidden_state, attention_mask)
        return score_answers(self._score_answers, outputs, answer_positions, labels, self.config.vqa_loss)

    def _find_answers(self, text_states: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        """The column (B,) of the answer in each row where it is not given, if the family has a rule for it."""
        return None


class PooledAnsweringTask(Task):
    """Visual question answering, from the pooled state."""

    answer_head: Any

    def _score_answers(self, pooled: Tensor) -> Tensor:
        """Pooled states (B, F) to scores (B, num_labels)."""
        return self.answer_head(pooled)

    @can_return_tuple
    @auto_docstring(custom_args=REGION_ARGS + POOLED_ANSWER_ARGS)
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
        labels: Tensor | None = None,
        **kwargs: Unpack[FamilyInputs],
    ) -> tuple | TaskOutput:
        sequence = (input_ids, attention_mask, token_type_ids, region_features, region_boxes, region_attention_mask)
        outputs = self.encode(*sequence, inputs_embeds, grounding_queries=grounding_queries, **kwargs)
        return answer_output(self._score_answers(outputs.pooler_output), outputs, labels, self.config.vqa_loss)


class ChoosingTask(Task):
    """Multiple choice, from the pooled state."""

    choice_head: Any

    def _score_choices(self, pooled: Tensor) -> Tensor:
        """Pooled states (B * C, F) to scores (B * C, 1)."""
        return self.choice_head(pooled)

    def _encode_choices(self, choices: Choices, queries: Queries | None, inputs: Columns) -> Any:
        """The base model's output for its `inputs`, with one row per choice."""
        rows = repeat_tasks(inputs, choices.num_choices).items()
        flat = {name: choices.reshape(name, value) for name, value in rows}
        return self.base_model(**flat, grounding_queries=choices.flatten_queries(queries), return_dict=True)

    @can_return_tuple
    @auto_docstring(custom_args=CHOICE_ARGS)
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
        labels: Tensor | None = None,
        **kwargs: Unpack[FamilyInputs],
    ) -> tuple | MultipleChoiceOutput:
        choices = Choices.find(input_ids, inputs_embeds)
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "region_features": region_features,
            "region_boxes": region_boxes,
            "region_attention_mask": region_attention_mask,
            "inputs_embeds": inputs_embeds,
        }
        classes: Any = kwargs.pop("region_class_labels", None)
        outputs = self._encode_choices(choices, grounding_queries, {**inputs, **kwargs})
        logits = self._score_choices(outputs.pooler_output).view(choices.batch_size, choices.num_choices)
        check_shape("labels", labels, (choices.batch_size,))
        if labels is None:
            losses = []
        else:
            losses = [choice_sum(logits, labels, self.config.choice_loss)]
        region_logits = None
        region_head = getattr(self, "region_class_head", None)
        if region_head is not None:
            packing = find_packing(choices.repeat(region_attention_mask, 2), self.config.unpad)
            flat = apply_packed(region_head, packing, outputs.region_hidden_state)
            region_logits = flat.unflatten(0, (choices.batch_size, choices.num_choices))
        if classes is not None:
            if region_logits is None:
                raise ValueError("region_class_labels are given, but config.choice_region_classes is None.")
            if classes.ndim == 2:
                classes = classes[:, None].expand(-1, choices.num_choices, -1)
            check_shape("region_class_labels", classes, region_logits.shape[:3])
            losses.append(cross_entropy_sum(region_logits, classes))
        states = {"hidden_states": outputs.hidden_states, "attentions": outputs.attentions}
        return MultipleChoiceOutput(loss=mean_of(*losses), logits=logits, region_class_logits=region_logits, **states)


class ReasoningTask(Task):
    """Reasoning over two images: the pooled states of the text with each image."""

    reasoning_head: Any
    _whole_image: bool

    def _score_classes(self, pooled: Tensor) -> Tensor:
        """Pooled states of both images (B, 2 F) to scores (B, 2)."""
        return self.reasoning_head(pooled)

    @can_return_tuple
    @auto_docstring(custom_args=REGION_ARGS + TWO_IMAGE_ARGS)
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
        grounding_queries: Queries | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple | TaskOutput:
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "region_features": region_features,
            "region_boxes": region_boxes,
            "region_attention_mask": region_attention_mask,
            "inputs_embeds": inputs_embeds,
            "region_token_type_ids": region_token_type_ids,
            "grounding_queries": grounding_queries,
        }
        outputs = self._encode_images(inputs, kwargs)
        logits = self._score_classes(outputs.pooler_output)
        check_shape("labels", labels, logits.shape[:1])
        loss = None if labels is None else mean_of(cross_entropy_sum(logits, labels))
        return task_output(outputs, loss, logits)

    def _encode_images(self, inputs: Columns, kwargs: Columns) -> Any:
        """The base model's output, with the pooled states of both images next to each other."""
        rows = split_images(**inputs, whole_image=self._whole_image, positions=kwargs.get("attention_queries"))
        outputs = self.base_model(**rows, return_dict=True, **repeat_tasks(kwargs, 2))
        outputs.pooler_output = outputs.pooler_output.unflatten(0, (-1, 2)).flatten(1)
        return outputs


class GroundingTask(Task, AlignmentScorer):
    """Phrase grounding."""

    grounding_head: Any

    def _score_pairs(self, phrase_states: Tensor, outputs: Any, *masks: Tensor) -> Tensor:
        """Scores (B, P, R) of regions for phrases (B, P, D); the masks are those of text and regions."""
        return self.grounding_head(phrase_states, outputs.region_hidden_state)

    @can_return_tuple
    @auto_docstring(custom_args=REGION_ARGS + PHRASE_GROUNDING_ARGS + ALIGNMENT_ARGS)
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
        phrase_mask: Tensor | None = None,
        phrase_regions: Tensor | None = None,
        alignment_phrases: Tensor | None = None,
        alignment_pairs: Tensor | None = None,
        **kwargs: Unpack[FamilyInputs],
    ) -> tuple | TaskOutput:
        sequence = (input_ids, attention_mask, token_type_ids, region_features, region_boxes, region_attention_mask)
        outputs = self.encode(*sequence, inputs_embeds, grounding_queries=grounding_queries, **kwargs)
        text_states = outputs.text_hidden_state
        region_states = outputs.region_hidden_state
        if phrase_mask is None:
            raise ValueError("phrase_mask is missing: give the tokens of each phrase, as the processor does.")
        check_shape("phrase_mask", phrase_mask, (text_states.shape[0], "num_phrases", text_states.shape[1]))
        columns = torch.arange(phrase_mask.shape[2], device=phrase_mask.device)
        last = torch.where(phrase_mask.bool(), columns, 0).amax(dim=2)  # (B, P)
        phrase_states = text_states.gather(1, last[..., None].expand(-1, -1, text_states.shape[-1]))
        text_mask = torch.ones_like(text_states[..., 0], dtype=torch.bool)
        if attention_mask is not None:
            text_mask = attention_mask.bool()
        region_mask = torch.ones_like(region_states[..., 0], dtype=torch.bool)
        if region_attention_mask is not None:
            region_mask = region_attention_mask.bool()
        logits = self._score_pairs(phrase_states, outputs, text_mask, region_mask)
        logits = logits.masked_fill(~region_mask[:, None], NO_CANDIDATE)
        check_shape("phrase_regions", phrase_regions, logits.shape)
        loss = None if phrase_regions is None else mean_of(grounding_divergence_sum(logits, phrase_regions))
        alignment = self.score_alignment(outputs, alignment_phrases, alignment_pairs)
        return task_output(outputs, loss, logits, alignment_logits=alignment)


def split_images(
    *,
    region_features: Tensor | None,
    region_boxes: Tensor | None,
    region_attention_mask: Tensor | None,
    region_token_type_ids: Tensor | None,
    grounding_queries: Any,
    positions: Any,
    whole_image: bool,
    **texts: Tensor | None,
) -> Fields:
    """Splits the regions of two images into rows 2i and 2i + 1; the text is the same in both."""
    if grounding_queries is not None or positions is not None:
        raise ValueError("grounding_queries are given, but a text with two images has two rows of attention.")
    rows: Fields = {}
    for name, value in texts.items():
        rows[name] = None if value is None else value.repeat_interleave(2, dim=0)
    if region_features is None:
        return {**rows, "region_features": None, "region_boxes": None, "region_attention_mask": None}
    if region_token_type_ids is None:
        raise ValueError(
            "region_token_type_ids are missing: give the image of each region, 0 or 1 (region_image_indices of the "
            "processor)."
        )
    check_shape("region_token_type_ids", region_token_type_ids, tuple(region_features.shape[:2]))
    mask = torch.ones_like(region_token_type_ids, dtype=torch.bool)
    if region_attention_mask is not None:
        mask = region_attention_mask.bool()
    images = torch.arange(2, device=mask.device)[:, None]
    own = mask[:, None] & (region_token_type_ids[:, None] == images)  # (B, 2, R)
    features = region_features[:, None].expand(-1, 2, -1, -1)
    if whole_image:
        first = torch.arange(mask.shape[1], device=mask.device) == 0
        own = own & ~first
        weights = own.to(features.dtype)
        mean = (weights / weights.sum(2, keepdim=True).clamp(min=1)) @ region_features  # (B, 2, F)
        features = torch.where(first[:, None], mean[:, :, None], features)
        own = own | (first & mask[:, None])
    return {
        **rows,
        "region_features": features.flatten(0, 1),
        "region_boxes": None if region_boxes is None else region_boxes.repeat_interleave(2, dim=0),
        "region_attention_mask": own.flatten(0, 1).long(),
    }

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Computes scores, loss and output of a task from a base model's output, for all families.

Each function takes the head as a callable, so that a family keeps its modules and their names in checkpoints.
`outputs` is a base model's output, see `task_outputs.py`. With `unpad`, heads that score every column skip padding.

Shape letters: B batch, C choices, T text, R regions, P phrases, D hidden.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .sequence_inputs import Choices, check_shape
from .task_heads import NO_CANDIDATE
from .task_losses import (
    UNLABELLED,
    Loss,
    answer_sum,
    choice_sum,
    cross_entropy_sum,
    grounding_divergence_sum,
    mean_of,
    region_sum,
    soft_cross_entropy_sum,
)
from .task_outputs import MultipleChoiceOutput, PreTrainingOutput, TaskOutput
from .unpadding import apply_packed, find_packing

Head = Callable[[torch.Tensor], torch.Tensor]


def predict_hidden(
    outputs: Any,
    *,
    word_head: Head,
    region_head: Head | None = None,
    relationship_head: Head | None = None,
    attention_mask: torch.Tensor | None = None,
    region_attention_mask: torch.Tensor | None = None,
    labels: torch.Tensor | None = None,
    text_only: torch.Tensor | None = None,
    region_labels: torch.Tensor | None = None,
    region_label_probs: torch.Tensor | None = None,
    relationship_labels: torch.Tensor | None = None,
    region_loss: Callable[[Any], Loss | None] | None = None,
    phrase_scores: Mapping[str, torch.Tensor | None] | None = None,
    unpad: bool = False,
) -> PreTrainingOutput:
    """
    Pre-training: predicts masked words and, if the heads are given, masked regions and whether caption and image
    belong together.
    """
    packed_text = find_packing(attention_mask, unpad)
    mlm_logits = apply_packed(word_head, packed_text, outputs.text_hidden_state)
    region_logits, relationship_logits = None, None
    if region_head is not None:
        packed_regions = find_packing(region_attention_mask, unpad)
        region_logits = apply_packed(region_head, packed_regions, outputs.region_hidden_state)
    if relationship_head is not None:
        relationship_logits = relationship_head(outputs.pooler_output)

    losses = []
    check_shape("labels", labels, mlm_logits.shape[:2])
    check_shape("text_only", text_only, mlm_logits.shape[:1])
    check_shape("relationship_labels", relationship_labels, mlm_logits.shape[:1])
    if labels is not None and text_only is not None:
        # One mean for words with images and one for words of text-only rows (two data streams, VL-BERT public code).
        alone = text_only.bool()[:, None]
        losses += [cross_entropy_sum(mlm_logits, labels.masked_fill(rows, UNLABELLED)) for rows in (alone, ~alone)]
    elif labels is not None:
        losses.append(cross_entropy_sum(mlm_logits, labels))
    if region_loss is not None:
        losses += [loss for loss in (region_loss(region_logits),) if loss is not None]
    elif region_labels is not None or region_label_probs is not None:
        losses.append(_region_class_loss(region_logits, region_labels, region_label_probs))
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


def _region_class_loss(logits: Any, labels: torch.Tensor | None, probs: Any) -> Loss:
    if labels is not None and probs is not None:
        raise ValueError("Give region_labels or region_label_probs, not both.")
    if logits is None:
        raise ValueError("Region targets are given, but this model has no region head.")
    check_shape("region_labels", labels, logits.shape[:2])
    check_shape("region_label_probs", probs, logits.shape)
    if labels is not None:
        return cross_entropy_sum(logits, labels)
    return soft_cross_entropy_sum(logits, probs)


def choose_region(
    head: Head,
    outputs: Any,
    region_attention_mask: torch.Tensor | None,
    region_targets: torch.Tensor | None,
    unpad: bool = False,
) -> TaskOutput:
    """
    Referring expressions: scores every region; [`NO_CANDIDATE`] for padding.
    """
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
    return TaskOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions)


def score_answers(
    head: Head, outputs: Any, answer_positions: torch.Tensor | None, labels: torch.Tensor | None, form: str
) -> TaskOutput:
    """
    Visual question answering: scores every answer, from the state of the `[MASK]` that stands for the answer.
    """
    text_states = outputs.text_hidden_state
    if answer_positions is None:
        raise ValueError("answer_positions are missing: give the text column of the [MASK], as the processor does.")
    check_shape("answer_positions", answer_positions, text_states.shape[:1])
    index = answer_positions[:, None, None].expand(-1, 1, text_states.shape[-1])
    return _answer_output(head(text_states.gather(1, index)[:, 0]), outputs, labels, form)


def score_pooled_answers(head: Head, outputs: Any, labels: torch.Tensor | None, form: str) -> TaskOutput:
    """
    Visual question answering: scores every answer from the pooled state.
    """
    return _answer_output(head(outputs.pooler_output), outputs, labels, form)


def _answer_output(logits: torch.Tensor, outputs: Any, labels: torch.Tensor | None, form: str) -> TaskOutput:
    loss = None
    if labels is not None:
        check_shape("labels", labels, logits.shape)
        loss = mean_of(answer_sum(logits, labels, form))
    return TaskOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions)


def score_classes(head: Head, outputs: Any, labels: torch.Tensor | None) -> TaskOutput:
    """
    Classifies text and image together, from the pooled state.
    """
    logits = head(outputs.pooler_output)
    loss = None
    if labels is not None:
        check_shape("labels", labels, logits.shape[:1])
        loss = mean_of(cross_entropy_sum(logits, labels))
    return TaskOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions)


def score_choices(
    head: Head,
    outputs: Any,
    choices: Choices,
    labels: torch.Tensor | None,
    form: str,
    *,
    region_head: Head | None = None,
    region_attention_mask: torch.Tensor | None = None,
    region_class_labels: torch.Tensor | None = None,
    unpad: bool = False,
) -> MultipleChoiceOutput:
    """
    Multiple choice: scores every choice from its pooled state and, if their head is given, classifies the regions.
    """
    logits = head(outputs.pooler_output).view(choices.batch_size, choices.num_choices)
    region_class_logits = None
    if region_head is not None:
        packed_regions = find_packing(region_attention_mask, unpad)
        region_class_logits = apply_packed(region_head, packed_regions, outputs.region_hidden_state)
        region_class_logits = region_class_logits.unflatten(0, (choices.batch_size, choices.num_choices))
    losses = []
    if labels is not None:
        check_shape("labels", labels, (choices.batch_size,))
        losses.append(choice_sum(logits, labels, form))
    if region_class_labels is not None:
        if region_class_logits is None:
            raise ValueError("region_class_labels are given, but config.choice_region_classes is None.")
        if region_class_labels.ndim == 2:
            region_class_labels = region_class_labels[:, None].expand(-1, choices.num_choices, -1)
        check_shape("region_class_labels", region_class_labels, region_class_logits.shape[:3])
        losses.append(cross_entropy_sum(region_class_logits, region_class_labels))
    return MultipleChoiceOutput(
        loss=mean_of(*losses),
        logits=logits,
        region_class_logits=region_class_logits,
        hidden_states=outputs.hidden_states,
        attentions=outputs.attentions,
    )


def ground_phrases(
    scorer: Callable[..., torch.Tensor],
    outputs: Any,
    *,
    phrase_mask: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    region_attention_mask: torch.Tensor | None,
    phrase_regions: torch.Tensor | None,
    alignment_logits: torch.Tensor | None = None,
) -> TaskOutput:
    """
    Phrase grounding: scores every pair of region and phrase, from the state of the phrase's last token.
    """
    text_states, region_states = outputs.text_hidden_state, outputs.region_hidden_state
    if phrase_mask is None:
        raise ValueError("phrase_mask is missing: give the tokens of each phrase, as the processor does.")
    check_shape("phrase_mask", phrase_mask, (text_states.shape[0], "num_phrases", text_states.shape[1]))
    columns = torch.arange(phrase_mask.shape[2], device=phrase_mask.device)
    last = torch.where(phrase_mask.bool(), columns, 0).amax(dim=2)  # (B, P)
    phrase_states = text_states.gather(1, last[..., None].expand(-1, -1, text_states.shape[-1]))
    text_mask, region_mask = (
        torch.ones_like(states[..., 0], dtype=torch.bool) if mask is None else mask.bool()
        for states, mask in ((text_states, attention_mask), (region_states, region_attention_mask))
    )
    logits = scorer(phrase_states, outputs, text_mask, region_mask).masked_fill(~region_mask[:, None], NO_CANDIDATE)
    loss = None
    if phrase_regions is not None:
        check_shape("phrase_regions", phrase_regions, logits.shape)
        loss = mean_of(grounding_divergence_sum(logits, phrase_regions))
    return TaskOutput(
        loss=loss,
        logits=logits,
        alignment_logits=alignment_logits,
        hidden_states=outputs.hidden_states,
        attentions=outputs.attentions,
    )


__all__ = [
    "choose_region",
    "ground_phrases",
    "predict_hidden",
    "score_answers",
    "score_choices",
    "score_classes",
    "score_pooled_answers",
]

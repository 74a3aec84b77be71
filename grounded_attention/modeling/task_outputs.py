# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The output classes of models, the same for all families; `task_heads.py` and `task_forward.py` read and make them.

The output of every base model has `text_hidden_state`, `region_hidden_state`, `pooler_output`, `hidden_states` and
`attentions`. Its configuration has the widths `text_hidden_size`, `region_hidden_size` and `pooled_hidden_size`.
"""

from dataclasses import dataclass

from torch import Tensor
from transformers.utils import ModelOutput, auto_docstring


@auto_docstring(
    custom_intro="""
    Output of a base model. States at padded columns have no meaning.
    """
)
@dataclass
class GroundedModelOutput(ModelOutput):
    r"""
    last_hidden_state (`torch.FloatTensor` of shape `(batch_size, sequence_length, hidden_size)`):
        Last-layer states of the whole sequence, columns `[text][regions]`.
    pooler_output (`torch.FloatTensor` of shape `(batch_size, pooled_hidden_size)`):
        One state for text and image together; `None` without a pooler.
    text_hidden_state (`torch.FloatTensor` of shape `(batch_size, text_length, text_hidden_size)`):
        Last-layer states of the text.
    region_hidden_state (`torch.FloatTensor` of shape `(batch_size, num_regions, region_hidden_size)`):
        Last-layer states of the regions.
    hidden_states (`tuple(torch.FloatTensor)`, *optional*, returned when `output_hidden_states=True`):
        States of the embeddings and after each layer. The text has the first columns.
    """

    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None
    text_hidden_state: Tensor | None = None
    region_hidden_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@auto_docstring(
    custom_intro="""
    Output of a base model with two streams. States at padded columns have no meaning.
    """
)
@dataclass
class TwoStreamModelOutput(GroundedModelOutput):
    r"""
    last_hidden_state (`torch.FloatTensor` of shape `(batch_size, sequence_length, text_hidden_size)`):
        Last-layer states of the text's stream, the text first.
    pooler_output (`torch.FloatTensor` of shape `(batch_size, pooled_hidden_size)`):
        One state for text and image together; `None` without a pooler.
    text_hidden_state (`torch.FloatTensor` of shape `(batch_size, text_length, text_hidden_size)`):
        Last-layer states of the text.
    region_hidden_state (`torch.FloatTensor` of shape `(batch_size, num_regions, region_hidden_size)`):
        Last-layer states of the regions.
    hidden_states (`tuple(torch.FloatTensor)`, *optional*, returned when `output_hidden_states=True`):
        States of the text's stream, of the embeddings and after each of its layers.
    region_hidden_states (`tuple(torch.FloatTensor)`, *optional*, returned when `output_hidden_states=True`):
        The same of the regions' stream.
    attentions (`tuple(torch.FloatTensor)`, *optional*, returned when `output_attentions=True`):
        The attention of every call in the order of execution, `(batch_size, num_heads, queries, keys)`.
    text_pooler_output (`torch.FloatTensor` of shape `(batch_size, pooled_hidden_size)`):
        Pooled state of the text, where the family has one.
    region_pooler_output (`torch.FloatTensor` of shape `(batch_size, pooled_hidden_size)`):
        Pooled state of the regions, where the family has one.
    """

    region_hidden_states: tuple[Tensor, ...] | None = None
    text_pooler_output: Tensor | None = None
    region_pooler_output: Tensor | None = None


@auto_docstring(
    custom_intro="""
    Output of a model with the heads of pre-training. Logits at padded columns have no meaning. `config.unpad`
    says which logits a training with labels computes.
    """
)
@dataclass
class PreTrainingOutput(ModelOutput):
    r"""
    loss (`torch.FloatTensor` of shape `()`, *optional*, returned when any target is given):
        Sum of the losses of the given targets.
    mlm_logits (`torch.FloatTensor` of shape `(batch_size, text_length, vocab_size)`):
        Scores of the vocabulary for every text token.
    region_logits (`torch.FloatTensor` of shape `(batch_size, num_regions, region_classes)`):
        Scores of the detector classes for every region; `None` without that head.
    relationship_logits (`torch.FloatTensor` of shape `(batch_size, 2)`):
        Scores of "caption of another image" and "caption of this image"; `None` without that head.
    grounding_logits (`torch.FloatTensor` of shape `(batch_size, num_phrases, num_regions)`):
        Score of every pair of phrase and region, before a sigmoid; without meaning for padded phrases and regions.
        `None` without a grounding head or phrases.
    alignment_logits (`torch.FloatTensor` of shape `(batch_size, num_pairs)`):
        Score of every pair of phrase and region in `alignment_pairs`, before a sigmoid; without meaning for padded
        pairs. `None` without that head or pairs.
    """

    loss: Tensor | None = None
    mlm_logits: Tensor | None = None
    region_logits: Tensor | None = None
    relationship_logits: Tensor | None = None
    grounding_logits: Tensor | None = None
    alignment_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@auto_docstring(
    custom_intro="""
    Output of a model for visually grounded paraphrases.
    """
)
@dataclass
class VGPOutput(ModelOutput):
    r"""
    loss (`torch.FloatTensor` of shape `()`, *optional*, returned when labels are given):
        Identification loss plus phrase-pair loss, each a plain mean over its labelled items.
    identification_logits (`torch.FloatTensor` of shape `(batch_size, num_identification_labels)`):
        Scores of the classes: both captions belong to the image, the first, the second.
    vgp_logits (`torch.FloatTensor` of shape `(batch_size, num_pairs, num_vgp_labels)`):
        Scores of the semantic classes of every phrase pair, 0 for padded pairs; `None` without phrase pairs.
    grounding_logits (`torch.FloatTensor` of shape `(batch_size, num_phrases, num_regions)`):
        Score of every pair of phrase and region, before a sigmoid; without meaning for padded phrases and regions.
        `None` without a grounding head or phrases.
    pred_boxes (`torch.FloatTensor` of shape `(batch_size, text_length, 4)`):
        Box of the object that each word names, (center_x, center_y, width, height) divided by the image size, in
        [0, 1]; without meaning for words that name no object. `None` without a box head.
    alignment_logits (`torch.FloatTensor` of shape `(batch_size, num_pairs)`):
        Score of every pair of phrase and region in `alignment_pairs`, before a sigmoid; without meaning for padded
        pairs. `None` without that head or pairs.
    """

    loss: Tensor | None = None
    identification_logits: Tensor | None = None
    vgp_logits: Tensor | None = None
    grounding_logits: Tensor | None = None
    pred_boxes: Tensor | None = None
    alignment_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@auto_docstring(
    custom_intro="""
    Output of a model with one head.
    """
)
@dataclass
class TaskOutput(ModelOutput):
    r"""
    loss (`torch.FloatTensor` of shape `()`, *optional*, returned when the targets are given):
        The loss of the head.
    logits (`torch.FloatTensor`):
        The scores of the head: `(batch_size, num_labels)` of answers or classes, `(batch_size, num_regions)` of a
        referring expression, or `(batch_size, num_phrases, num_regions)` of phrases. -10000 for padded regions.
    alignment_logits (`torch.FloatTensor` of shape `(batch_size, num_pairs)`):
        Score of every pair of phrase and region in `alignment_pairs`, before a sigmoid; without meaning for padded
        pairs. `None` without that head or pairs.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    alignment_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@auto_docstring(
    custom_intro="""
    Output of a model for multiple choice. Hidden states and attention maps have one row per choice; the choices of an
    item are consecutive.
    """
)
@dataclass
class MultipleChoiceOutput(ModelOutput):
    r"""
    loss (`torch.FloatTensor` of shape `()`, *optional*, returned when any target is given):
        Sum of the losses of choices and region classes, if their targets are given.
    logits (`torch.FloatTensor` of shape `(batch_size, num_choices)`):
        Score of every choice.
    region_class_logits (`torch.FloatTensor` of shape `(batch_size, num_choices, num_regions, choice_region_classes)`):
        Scores of the object classes for every region and choice, without meaning for padded regions; `None` without
        that head.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    region_class_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None

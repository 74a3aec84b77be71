# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The `forward` arguments of tasks, the same for all families: types, and docstrings for `auto_docstring`."""

from torch import Tensor
from transformers.utils import TransformersKwargs


class FamilyInputs(TransformersKwargs, total=False):
    """Inputs that only some families have: see the `forward` of their base models and `CHOICE_ARGS`."""

    pixel_values: Tensor | None
    image_sizes: Tensor | None
    token_regions: Tensor | None
    region_token_type_ids: Tensor | None
    image_text_alignment: Tensor | None
    task_ids: Tensor | None
    region_class_labels: Tensor | None


FAMILY_INPUTS = tuple(name for name in FamilyInputs.__annotations__ if name not in TransformersKwargs.__annotations__)

PRETRAINING_ARGS = """
        labels (`torch.LongTensor` of shape `(batch_size, text_length)`, *optional*):
            Vocabulary indices of the masked words, -100 elsewhere.
        relationship_labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            1 if the caption (the second of two captions) belongs to the image, 0 if not, -100 to ignore a row.
        """

ALIGNMENT_ARGS = """
        alignment_phrases (`torch.LongTensor` of shape `(batch_size, num_phrases, max_tokens)`, *optional*):
            The text columns of the tokens of each phrase in order, -1 for padding; for single words one column. For
            models with `config.alignment_level`.
        alignment_pairs (`torch.LongTensor` of shape `(batch_size, num_pairs, 2)`, *optional*):
            Pairs of an index into `alignment_phrases` and a region column, -1 for padding.
        """

PHRASE_ARGS = (
    """
        phrase_mask (`torch.BoolTensor` of shape `(batch_size, num_phrases, text_length)`, *optional*):
            The tokens of each phrase; no token for padded phrases. For models with `config.grounding_head`.
        """
    + ALIGNMENT_ARGS
)

VGP_ARGS = """
        phrase_mask (`torch.BoolTensor` of shape `(batch_size, num_phrases, text_length)`, *optional*):
            The tokens of each phrase; no token for padded phrases.
        phrase_pairs (`torch.LongTensor` of shape `(batch_size, num_pairs, 2)`, *optional*):
            Pairs of phrase indices, the phrase of the first caption first; -1 for padding.
        phrase_regions (`torch.FloatTensor` of shape `(batch_size, num_phrases, num_regions)`, *optional*):
            The regions of each phrase. A target of attention supervision; this model ignores it.
        identification_labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            0 if both captions match, 1 if the first, 2 if the second, -100 to ignore a row (VGP paper, equation 1).
        vgp_labels (`torch.LongTensor` of shape `(batch_size, num_pairs)`, *optional*):
            Semantic classes of the phrase pairs, -100 to ignore a pair (VGP paper, equation 4).
        """

REFERRING_ARGS = """
        region_targets (`torch.FloatTensor` of shape `(batch_size, num_regions)`, *optional*):
            Target of each region, in [0, 1]: 1 if its overlap with the described region is more than half (VL-BERT
            public code). Regions with a negative target and padded regions are ignored.
        """

ANSWER_ARGS = """
        answer_positions (`torch.LongTensor` of shape `(batch_size,)`):
            The text column of the `[MASK]` that stands for the answer, per row.
        labels (`torch.FloatTensor` of shape `(batch_size, num_labels)`, *optional*):
            Score of each answer, in [0, 1].
        """

REGION_ARGS = """
        region_features (`torch.FloatTensor` of shape `(batch_size, num_regions, region_feature_size)`, *optional*):
            Features of the image regions, the whole image first in families that have it. Without them the input is
            text only.
        region_boxes (`torch.FloatTensor` of shape `(batch_size, num_regions, 4)`, *optional*):
            `(x1, y1, x2, y2)` of each region divided by image width and height, in [0, 1]. Required with
            `region_features`, except by VisualBERT without `config.spatial_encoding`, which does not read them.
        region_attention_mask (`torch.Tensor` of shape `(batch_size, num_regions)`, *optional*):
            1 for regions, 0 for padding. Rows without regions are text only.
        grounding_queries (`dict`, *optional*):
            The attention that the attention function reports for the calls between text and regions.
            `"text_to_region"`: token rows `(batch_size, Q)` and region columns `(batch_size, K)`. `"region_to_text"`:
            region rows and token columns. int64 indices, -1 for padding.
        """

CHOICE_ARGS = """
        input_ids (`torch.LongTensor` of shape `(batch_size, num_choices, text_length)`, *optional*):
            Tokens of question and choice.
        attention_mask (`torch.Tensor` of shape `(batch_size, num_choices, text_length)`, *optional*):
            1 for tokens, 0 for padding.
        token_type_ids (`torch.LongTensor` of shape `(batch_size, num_choices, text_length)`, *optional*):
            Types of the tokens: 0 the question, 1 the choice.
        region_features (`torch.FloatTensor` of shape `(batch_size, num_regions, region_feature_size)`, *optional*):
            Features of the image regions, shared by all choices; the whole image first in families that have it. All
            region inputs can also have a dimension `num_choices` after the first, but not with `pixel_values`, which
            all choices share. Without them the input is text only.
        region_boxes (`torch.FloatTensor` of shape `(batch_size, num_regions, 4)`, *optional*):
            `(x1, y1, x2, y2)` of each region divided by image width and height, in [0, 1].
        region_attention_mask (`torch.Tensor` of shape `(batch_size, num_regions)`, *optional*):
            1 for regions, 0 for padding. Rows without regions are text only.
        inputs_embeds (`torch.FloatTensor` of shape `(batch_size, num_choices, text_length, hidden_size)`, *optional*):
            Word embeddings instead of `input_ids`.
        grounding_queries (`dict`, *optional*):
            The attention to report, see the base model; one row per choice, with the choices of an item consecutive,
            or with a dimension `num_choices` after the first.
        labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            Index of the right choice, -100 to ignore an item.
        kwargs (`dict`, *optional*):
            Inputs of the family's base model; its text inputs have a dimension `num_choices` after the first. With
            `config.choice_region_classes` also `region_class_labels`, `(batch_size, num_regions)`: the object class of
            each region, -100 to ignore a region, with a dimension `num_choices` if the regions have one.
        """

POOLED_ANSWER_ARGS = """
        labels (`torch.FloatTensor` of shape `(batch_size, num_labels)`, *optional*):
            Score of each answer, in [0, 1].
        """

TWO_IMAGE_ARGS = """
        region_token_type_ids (`torch.LongTensor` of shape `(batch_size, num_regions)`, *optional*):
            The image of each region, 0 or 1. Required with `region_features`.
        labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            1 if the text is true, 0 if not, -100 to ignore a row.
        """

REGION_TARGET_ARGS = """
        masked_regions (`torch.BoolTensor` of shape `(batch_size, num_regions)`, *optional*):
            Regions whose features are replaced by zeros; their boxes do not change.
        text_only (`torch.BoolTensor` of shape `(batch_size,)`, *optional*):
            Rows of a text-only corpus; their words get a mean of their own.
        region_labels (`torch.LongTensor` of shape `(batch_size, num_regions)`, *optional*):
            Classes of the regions to predict, -100 elsewhere.
        region_label_probs (`torch.FloatTensor` of shape `(batch_size, num_regions, region_classes)`, *optional*):
            Class distributions of the regions to predict, zeros elsewhere, instead of `region_labels`. The loss is the
            divergence from them.
        predicted_regions (`torch.BoolTensor` of shape `(batch_size, num_regions)`, *optional*):
            The regions whose features are predicted, if the model predicts features.
        region_feature_targets (`torch.FloatTensor` of shape `(batch_size, num_regions, F)`, *optional*):
            The features to predict, if `region_features` has others in the place of some; `region_features` when not
            given.
        negative_regions (`torch.LongTensor` of shape `(batch_size, num_regions, num_negative)`, *optional*):
            For `visual_target="nce"`: indices of the other features in the batch flattened to
            `(batch_size * num_regions)`, -1 for padding; drawn at random when not given.
        """

PHRASE_GROUNDING_ARGS = """
        phrase_mask (`torch.BoolTensor` of shape `(batch_size, num_phrases, text_length)`):
            The tokens of each phrase; no token for padded phrases.
        phrase_regions (`torch.FloatTensor` of shape `(batch_size, num_phrases, num_regions)`, *optional*):
            The right regions of each phrase. The loss is the divergence from the uniform distribution over them,
            summed over the phrases with regions and averaged over the rows (VisualBERT public code).
        """

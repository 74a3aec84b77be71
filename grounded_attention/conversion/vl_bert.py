# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Keys of the original VL-BERT and VGP checkpoints, our names for them, and the reasons for skipped keys.

The public code stores a state dict whose keys have the prefix `module.` (data parallel) and, in VCR,
`vlbert._module.`. Linear layers are (out, in) in both, so no tensor is transposed.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from grounded_attention.modeling.configuration_fast_rcnn import FastRCNNConfig
from grounded_attention.modeling.configuration_vl_bert import VLBertConfig
from grounded_attention.modeling.modeling_vl_bert import (
    VLBertForMultipleChoice,
    VLBertForPreTraining,
    VLBertForReferringExpression,
    VLBertForVGP,
    VLBertForVisualQuestionAnswering,
    VLBertModel,
)
from grounded_attention.utils.named_types import Columns, Fields

from .fast_rcnn import IGNORED, check_second_head, read_image_fields, rename_image_key
from .fields import CheckpointError, ConfigFields, OverrideError, make_config
from .keys import Conversion, Keys, Rename, Weights, Wrapper, rename_prefix
from .original_family import OriginalFamily

# Prefix of the pixel network in a VL-BERT.
VISION = "vl_bert.vision_model."

_REGION_FEATURE_SIZE = 2048
_WORDS = "vl_bert.embeddings.word_embeddings.weight"
_PROJECTION = "vl_bert.region_encoder.projection.weight"


def _read_vision(conversion: Conversion, overrides: Fields) -> ConfigFields | None:
    """The fields of the pixel network, removed from `overrides`; `None` without a pixel network."""
    inside = any(name.startswith(VISION) for name in conversion.weights)
    fields = overrides.pop("vision_config", {})
    if fields is None or not (inside or fields):
        return None
    if not isinstance(fields, Mapping):
        raise OverrideError(
            f"--config gives vision_config {fields!r}, expected an object of fields of FastRCNNConfig."
        )
    return read_image_fields(conversion, VISION, fields)


def _read_trunk(conversion: Conversion) -> Columns:
    scale = conversion.weights.get("vl_bert.embeddings.text_visual.norm.weight")
    fields: Fields = {"visual_norm": scale is None or scale.dim() > 0}
    if conversion.class_name == "VLBertModel":  # task classes set it themselves
        fields["use_pooler"] = "vl_bert.pooler.dense.weight" in conversion.weights
    return fields


def _read_heads(conversion: Conversion) -> Columns:
    weights = conversion.weights
    heads = {name.partition(".")[0] for name in weights}
    fields = dict[str, Any]()
    if conversion.class_name == "VLBertForPreTraining":
        # In pre-training only the relationship head uses the pooler.
        fields["relationship_head"] = fields["use_pooler"] = "relationship_head.weight" in weights
        fields["region_classes"] = conversion.shape("region_head.classifier.weight")[0]
    if conversion.class_name == "VLBertForVGP":
        fields["grounding_head"] = "grounding_head" in heads
    if conversion.class_name == "VLBertForMultipleChoice":
        classes = "region_class_head.classifier.weight"
        fields["choice_region_classes"] = conversion.shape(classes)[0] if "region_class_head" in heads else None
    for name, labels in {
        "identification": "num_identification_labels",
        "vgp": "num_vgp_labels",
        "grounding": None,
        "choice": None,
    }.items():
        dense = f"{name}_head.dense.weight"
        classifier = f"{name}_head.classifier.weight"
        if dense in weights:
            fields[f"{name}_hidden_size"] = conversion.shape(dense)[0]
        if classifier in weights and labels is not None:
            fields[labels] = conversion.shape(classifier)[0]
    return fields


def _read_answer_head(conversion: Conversion) -> Columns:
    parts = {".".join(name.split(".")[:2]) for name in conversion.weights}
    if "answer_head.transform" in parts:
        return {"answer_head": "mlm"}
    if "answer_head.dense" not in parts:
        return {"answer_head": "1fc"}
    return {"answer_head": "2fc", "answer_hidden_size": conversion.shape("answer_head.dense.weight")[0]}


def _check_projection(conversion: Conversion, config: VLBertConfig) -> None:
    """Checks that the projection has a column for every coordinate and feature value."""
    width = conversion.shape(_PROJECTION)[1]
    size = config.region_feature_size
    expected = 8 * config.coordinate_dim + size
    if width != expected:
        raise CheckpointError(
            f"{conversion.original(_PROJECTION)} has {width} columns, expected {expected}: 8 * coordinate_dim "
            f"{config.coordinate_dim} for coordinates and region_feature_size {size} for features. If the model has "
            "other values, give these two fields with --config."
        )


# Original prefix -> our prefix, for every class. The first match applies; the rest of the key is unchanged.
_TRUNK = (
    ("image_feature_extractor.obj_downsample.1.", "vl_bert.region_encoder.projection."),
    ("object_linguistic_embeddings.", "vl_bert.embeddings.region_embedding."),
    ("aux_text_visual_embedding.", "vl_bert.embeddings.text_only_visual_embedding."),
    ("vlbert.word_embeddings.", "vl_bert.embeddings.word_embeddings."),
    ("vlbert.end_embedding.", "vl_bert.embeddings.end_embedding."),
    ("vlbert.position_embeddings.", "vl_bert.embeddings.position_embeddings."),
    ("vlbert.token_type_embeddings.", "vl_bert.embeddings.token_type_embeddings."),
    ("vlbert.embedding_LayerNorm.", "vl_bert.embeddings.LayerNorm."),
    ("vlbert.visual_1x1_text.", "vl_bert.embeddings.text_visual.projection."),
    ("vlbert.visual_1x1_object.", "vl_bert.embeddings.region_visual.projection."),
    ("vlbert.encoder.", "vl_bert.encoder."),
    ("vlbert.pooler.", "vl_bert.pooler."),
    # Visual embeddings are normalised or scaled; a file has one of the two.
    ("vlbert.visual_ln_text.", "vl_bert.embeddings.text_visual.norm."),
    ("vlbert.visual_ln_object.", "vl_bert.embeddings.region_visual.norm."),
    ("vlbert.visual_scale_text", "vl_bert.embeddings.text_visual.norm.weight"),
    ("vlbert.visual_scale_object", "vl_bert.embeddings.region_visual.norm.weight"),
)


# Class -> rules of its heads.
_HEADS = {
    "VLBertForPreTraining": (
        ("object_mask_visual_embedding.", "region_mask_embedding."),
        ("object_mask_word_embedding.", "masked_region_embedding."),
        ("vlbert.relationsip_head.caption_image_relationship.", "relationship_head."),
        ("vlbert.mlm_head.predictions.transform.", "mlm_head.transform."),
        ("vlbert.mlm_head.predictions.bias", "mlm_head.decoder.bias"),
        ("vlbert.mlm_head.predictions.decoder.", "mlm_head.decoder."),
        ("vlbert.mvrc_head.transform.dense.", "region_head.dense."),
        ("vlbert.mvrc_head.region_cls_pred.", "region_head.classifier."),
    ),
    # Index 1 is the only linear layer of a "1fc" head and the first of a "2fc" head, whose second is 4.
    "VLBertForMultipleChoice": (
        ("final_mlp.4.", "choice_head.classifier."),
        ("final_mlp.1.", "choice_head.dense."),
        ("cnn_loss_reg.0.dense.", "region_class_head.dense."),
        ("cnn_loss_reg.2.", "region_class_head.classifier."),
    ),
    "VLBertForReferringExpression": (
        ("final_mlp.0.dense.", "referring_head.dense."),
        ("final_mlp.2.", "referring_head.classifier."),
    ),
    # The third kind of answer head has the layers of the masked word head.
    "VLBertForVisualQuestionAnswering": (
        ("final_mlp.4.", "answer_head.classifier."),
        ("final_mlp.1.", "answer_head.dense."),
        ("final_mlp.0.", "answer_head.transform."),
        ("final_mlp.2.", "answer_head.classifier."),
    ),
    "VLBertForVGP": (
        ("sentence_cls.4.", "identification_head.classifier."),
        ("sentence_cls.1.", "identification_head.dense."),
        ("phrasal_cls.4.", "vgp_head.classifier."),
        ("phrasal_cls.1.", "vgp_head.dense."),
        ("vg_cls.4.", "grounding_head.classifier."),
        ("vg_cls.1.", "grounding_head.dense."),
    ),
}

# Prefix -> option, for keys that change the meaning of other tensors and therefore must not be skipped.
_REFUSED = {
    "vlbert.special_word_embeddings.": "word_embedding_frozen",
    "image_feature_extractor.object_embed.": "IMAGE_SEMANTIC",
}

# The wrapper of the base model in VCR's code.
_VCR = "vlbert._module."
_TEXT_ONLY = "vl_bert.embeddings.text_only_visual_embedding.weight"
_REGION_MASK = "region_mask_embedding.weight"


class VLBertFamily(OriginalFamily):
    """The converter for files of the public VL-BERT and VGP code."""

    title = "VL-BERT"
    expected = "a pre-training or task checkpoint of the public VL-BERT or VGP code"
    config_class = VLBertConfig
    model_classes = (
        VLBertModel,
        VLBertForMultipleChoice,
        VLBertForPreTraining,
        VLBertForReferringExpression,
        VLBertForVGP,
        VLBertForVisualQuestionAnswering,
    )
    classes = {
        _VCR: "VLBertForMultipleChoice",
        "sentence_cls.": "VLBertForVGP",
        "phrasal_cls.": "VLBertForVGP",
        "vlbert.mlm_head.": "VLBertForPreTraining",
        "vlbert.mvrc_head.": "VLBertForPreTraining",
        "cnn_loss_reg.": "VLBertForMultipleChoice",
        "final_mlp.0.LayerNorm.": "VLBertForVisualQuestionAnswering",
        "final_mlp.0.": "VLBertForReferringExpression",
        "final_mlp.1.": "VLBertForVisualQuestionAnswering",
    }
    base_prefix = "vl_bert."
    wrappers = (Wrapper(_VCR, "vlbert.", _VCR),)
    trunk = _TRUNK
    heads = _HEADS
    ignored = IGNORED
    tied = ("mlm_head.decoder.weight", _WORDS)
    sizes = {
        "vocab_size": (_WORDS, 0),
        "hidden_size": (_WORDS, 1),
        "intermediate_size": ("vl_bert.encoder.layer.0.intermediate.dense.weight", 0),
        "max_position_embeddings": ("vl_bert.embeddings.position_embeddings.weight", 0),
        "type_vocab_size": ("vl_bert.embeddings.token_type_embeddings.weight", 0),
        "visual_size": (_PROJECTION, 0),
    }
    layers = {"num_hidden_layers": "vl_bert.encoder.layer."}
    answers = {"VLBertForVisualQuestionAnswering": "answer_head.classifier.weight"}
    # The wavelengths determine the width of coordinates.
    assumed = {
        "coordinate_dim": 256,
        "coordinate_embedding": "center",
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "position_offset": 0,
    }
    public = (
        {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
    )
    droppable = {
        "vl_bert.pooler.": "pooler, which this class does not use",
        VISION: "pixel network, which --config removes",
    }

    def make_rename(self, class_name: str, keys: Keys) -> Rename:
        pairs = list(_TRUNK)
        for original, ours in _HEADS.get(class_name, ()):
            # Without a second layer, the first one is the classifier.
            if original.endswith(".1.") and not any(key.startswith(f"{original[:-3]}.4.") for key in keys):
                ours = ours.replace(".dense.", ".classifier.")
            pairs.append((original, ours))
        return lambda key: rename_prefix(pairs, key) or rename_image_key(key, end_to_end=True, prefix=VISION)

    def finish(self, conversion: Conversion, weights: Weights) -> None:
        """Checks options, decoder and last stage; pair features go from the public code's order to the paper's."""
        for prefix, option in _REFUSED.items():
            for key in (key for key in weights if key.startswith(prefix)):
                raise CheckpointError(
                    f"{conversion.keys[key]}: trained with {option}, which no public checkpoint uses and the "
                    "converter does not support."
                )
        check_second_head(weights, conversion)
        super().finish(conversion, weights)
        _permute_pair_features(conversion.weights)

    def optional(self, conversion: Conversion) -> Mapping[str, str]:
        """Weights that only some of the public modules have."""
        names = {_TEXT_ONLY: "only pre-training on text without images has it"}
        if any(name.startswith(VISION) for name in conversion.weights):
            names[_REGION_MASK] = "end-to-end pre-training masks pixels instead"
        return names

    def read_fields(self, conversion: Conversion, overrides: Columns) -> ConfigFields:
        """Also reads the fields of the pixel network, and checks the width of the projection of regions."""
        overrides = dict(overrides)
        vision = _read_vision(conversion, overrides)
        width = _REGION_FEATURE_SIZE
        if vision is not None:
            conversion.fields.nested["vision_config"] = vision
            width = make_config(FastRCNNConfig, vision).feature_size
        fields = super().read_fields(conversion, overrides)
        fields.nested = conversion.fields.nested
        if "region_feature_size" not in fields.given:
            fields.read["region_feature_size"] = width
        _check_projection(conversion, make_config(VLBertConfig, fields))
        return fields

    def read_more(self, conversion: Conversion, overrides: Columns, read: Columns) -> Columns:
        """Options of the trunk, and sizes of the heads."""
        fields = {**_read_trunk(conversion), **_read_heads(conversion)}
        if not conversion.fields.nested:
            fields["vision_config"] = None
        elif conversion.class_name == "VLBertForPreTraining":
            # A model without a feature for masked regions masks their pixels.
            fields["region_masking"] = "feature" if _REGION_MASK in conversion.weights else "pixels"
        if conversion.class_name == "VLBertForVisualQuestionAnswering":
            fields |= _read_answer_head(conversion)
        return fields


def _permute_pair_features(weights: dict[str, Tensor]) -> None:
    """Reorders [e1, e2, |e1 - e2|, e1 * e2] of the public code to [e1, e2, e1 * e2, |e1 - e2|] of the paper."""
    for name in ("vgp_head.dense.weight", "vgp_head.classifier.weight"):
        if (
            name in weights and weights[name].dim() == 2 and weights[name].shape[1] % 4 == 0
        ):  # another shape raises an error later
            first, second, difference, product = weights[name].chunk(4, dim=1)
            weights[name] = torch.cat([first, second, product, difference], dim=1)
            return


VL_BERT = VLBertFamily()

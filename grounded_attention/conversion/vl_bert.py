# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Keys of the original VL-BERT and VGP checkpoints, our names for them, and the reasons for skipped keys.

The public code stores a state dict whose keys have the prefix `module.` (data parallel) and, in VCR,
`vlbert._module.`. Linear layers are (out, in) in both, so no tensor is transposed.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
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

from .errors import CheckpointError, OverrideError
from .fast_rcnn import check_second_head, explain_image_key, read_image_fields, rename_image_key
from .fields import ConfigFields, make_config, settle_fields
from .keys import Conversion, Rename, Wrapper, plain_key, rename_prefix
from .original_family import OriginalFamily, check_same

# Prefix of the pixel network in a VL-BERT.
VISION = "vl_bert.vision_model."

PUBLIC = (
    {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
)
# Values of the public code that the weights do not determine. The wavelengths determine the width of coordinates.
_ASSUMED = {
    "coordinate_dim": 256,
    "coordinate_embedding": "center",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "position_offset": 0,
}
_REGION_FEATURE_SIZE = 2048
_PROJECTION = "vl_bert.region_encoder.projection.weight"

# Field -> our name of the tensor that determines it, and the dimension.
_SIZES = {
    "vocab_size": ("vl_bert.embeddings.word_embeddings.weight", 0),
    "hidden_size": ("vl_bert.embeddings.word_embeddings.weight", 1),
    "intermediate_size": ("vl_bert.encoder.layer.0.intermediate.dense.weight", 0),
    "max_position_embeddings": ("vl_bert.embeddings.position_embeddings.weight", 0),
    "type_vocab_size": ("vl_bert.embeddings.token_type_embeddings.weight", 0),
    "visual_size": (_PROJECTION, 0),
}


def read_vl_bert_fields(conversion: Conversion, overrides: Mapping[str, Any]) -> ConfigFields:
    """Reads the config fields of converted weights; sizes come from the shapes of the tensors."""
    overrides = dict(overrides)
    vision = _read_vision(conversion, overrides)
    read = {**_read_trunk(conversion), **_read_heads(conversion), **_read_answers(conversion, overrides)}
    if vision is None:
        read["vision_config"] = None
    elif conversion.class_name == "VLBertForPreTraining":
        # A model without a feature for masked regions masks their pixels.
        read["region_masking"] = "feature" if "region_mask_embedding.weight" in conversion.weights else "pixels"
    fields = settle_fields(read, _ASSUMED, overrides, VLBertConfig, PUBLIC)
    width = _REGION_FEATURE_SIZE
    if vision is not None:
        fields.nested["vision_config"] = vision
        width = make_config(FastRCNNConfig, vision).feature_size
    if "region_feature_size" not in fields.given:
        fields.read["region_feature_size"] = width
    _check_projection(conversion, make_config(VLBertConfig, fields))
    return fields


def _read_vision(conversion: Conversion, overrides: dict[str, Any]) -> ConfigFields | None:
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


def _read_trunk(conversion: Conversion) -> dict[str, Any]:
    fields: dict[str, Any] = conversion.read_sizes(_SIZES)
    fields["num_hidden_layers"] = conversion.count_layers("vl_bert.encoder.layer.")
    scale = conversion.weights.get("vl_bert.embeddings.text_visual.norm.weight")
    fields["visual_norm"] = scale is None or scale.dim() > 0
    if conversion.class_name == "VLBertModel":  # task classes set it themselves
        fields["use_pooler"] = "vl_bert.pooler.dense.weight" in conversion.weights
    return fields


def _read_heads(conversion: Conversion) -> dict[str, Any]:
    weights = conversion.weights
    fields = dict[str, Any]()
    if conversion.class_name == "VLBertForPreTraining":
        # In pre-training only the relationship head uses the pooler.
        fields["relationship_head"] = fields["use_pooler"] = "relationship_head.weight" in weights
        fields["region_classes"] = conversion.shape("region_head.classifier.weight")[0]
    if conversion.class_name == "VLBertForVGP":
        fields["grounding_head"] = any(name.startswith("grounding_head.") for name in weights)
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


def _read_answers(conversion: Conversion, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the answer head, and of the region classes of multiple choice."""
    weights = conversion.weights
    fields = dict[str, Any]()
    if conversion.class_name == "VLBertForMultipleChoice":
        has_classes = any(name.startswith("region_class_head.") for name in weights)
        classes = conversion.shape("region_class_head.classifier.weight")[0] if has_classes else None
        fields["choice_region_classes"] = classes
    if conversion.class_name != "VLBertForVisualQuestionAnswering":
        return fields
    if {"answers", "id2label"}.isdisjoint(overrides):
        fields["num_labels"] = conversion.shape("answer_head.classifier.weight")[0]
    if any(name.startswith("answer_head.transform.") for name in weights):
        return {**fields, "answer_head": "mlm"}
    if not any(name.startswith("answer_head.dense.") for name in weights):
        return {**fields, "answer_head": "1fc"}
    return {**fields, "answer_head": "2fc", "answer_hidden_size": conversion.shape("answer_head.dense.weight")[0]}


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
)

# Visual embeddings are normalised or scaled; a file has one of the two.
_NORMS = (
    ("vlbert.visual_ln_text.", "vl_bert.embeddings.text_visual.norm."),
    ("vlbert.visual_ln_object.", "vl_bert.embeddings.region_visual.norm."),
)
_SCALES = (
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
    "VLBertForVisualQuestionAnswering": (
        ("final_mlp.4.", "answer_head.classifier."),
        ("final_mlp.1.", "answer_head.dense."),
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

# The answer head with the layers of the masked word head.
_MLM_ANSWER_HEAD = (("final_mlp.0.", "answer_head.transform."), ("final_mlp.2.", "answer_head.classifier."))

# Prefix -> option, for keys that change the meaning of other tensors and therefore must not be skipped.
_REFUSED = {
    "vlbert.special_word_embeddings.": "word_embedding_frozen",
    "image_feature_extractor.object_embed.": "IMAGE_SEMANTIC",
}

# The wrapper of the base model in VCR's code.
_VCR = "vlbert._module."
# Prefix -> class; the first prefix of any key applies.
_CLASS_BY_KEY = {
    "sentence_cls.": "VLBertForVGP",
    "phrasal_cls.": "VLBertForVGP",
    "vlbert.mlm_head.": "VLBertForPreTraining",
    "vlbert.mvrc_head.": "VLBertForPreTraining",
    "cnn_loss_reg.": "VLBertForMultipleChoice",
    _VCR: "VLBertForMultipleChoice",
    "final_mlp.0.LayerNorm.": "VLBertForVisualQuestionAnswering",
    "final_mlp.0.": "VLBertForReferringExpression",
    "final_mlp.1.": "VLBertForVisualQuestionAnswering",
}
# Class -> (our head -> original head), for heads of one or two layers.
_SIZED_HEADS = {
    "VLBertForMultipleChoice": {"choice_head": "final_mlp"},
    "VLBertForVGP": {"identification_head": "sentence_cls", "vgp_head": "phrasal_cls", "grounding_head": "vg_cls"},
    "VLBertForVisualQuestionAnswering": {"answer_head": "final_mlp"},
}
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
    base_prefix = "vl_bert."
    wrappers = (Wrapper(_VCR, "vlbert.", _VCR),)
    public = PUBLIC
    droppable = {
        "vl_bert.pooler.": "pooler, which this class does not use",
        VISION: "pixel network, which --config removes",
    }

    def detect_class(self, weights: Mapping[str, Tensor], original_keys: Collection[str]) -> str:
        keys = [plain_key(key) for key in original_keys]
        for prefix, class_name in _CLASS_BY_KEY.items():
            if any(key.startswith(prefix) for key in keys):
                return class_name
        return "VLBertModel"

    def list_rules(self, class_name: str, keys: Collection[str]) -> Sequence[Rename]:
        scaled = any(key.startswith("vlbert.visual_scale_") for key in keys)
        heads = _list_heads(class_name, keys)
        own = (*_TRUNK, *(_SCALES if scaled else _NORMS), *heads)
        return partial(rename_prefix, own), partial(rename_image_key, end_to_end=True, prefix=VISION)

    def explain(self, key: str, class_name: str) -> str | None:
        """The reason for second copies and for heads of other classes."""
        own = _HEADS.get(class_name, ()) + (_MLM_ANSWER_HEAD if "QuestionAnswering" in class_name else ())
        others = (*(pair for heads in _HEADS.values() for pair in heads), *_MLM_ANSWER_HEAD)
        if key.startswith(tuple(begin for begin, _ in others)) and not key.startswith(
            tuple(begin for begin, _ in own)
        ):
            return "part of a pre-training or task head, which the class of this checkpoint does not have"
        return explain_image_key(key)

    def finish(self, conversion: Conversion, weights: Mapping[str, Tensor]) -> None:
        """Checks options, decoder and last stage; pair features go from the public code's order to the paper's."""
        for prefix, option in _REFUSED.items():
            for key in (key for key in weights if key.startswith(prefix)):
                raise CheckpointError(
                    f"{conversion.keys[key]}: trained with {option}, which no public checkpoint uses and the "
                    "converter does not support."
                )
        check_second_head(weights, conversion)
        check_same(conversion, "mlm_head.decoder.weight", "vl_bert.embeddings.word_embeddings.weight")
        _permute_pair_features(conversion.weights)

    def optional(self, conversion: Conversion) -> Mapping[str, str]:
        """Weights that only some of the public modules have."""
        names = {_TEXT_ONLY: "only pre-training on text without images has it"}
        if any(name.startswith(VISION) for name in conversion.weights):
            names[_REGION_MASK] = "end-to-end pre-training masks pixels instead"
        return names

    def read_fields(self, conversion: Conversion, overrides: Mapping[str, Any]) -> ConfigFields:
        return read_vl_bert_fields(conversion, overrides)


def _list_heads(class_name: str, keys: Collection[str]) -> list[tuple[str, str]]:
    heads = list(_HEADS.get(class_name, ()))
    if class_name == "VLBertForVisualQuestionAnswering" and any(key.startswith("final_mlp.0.") for key in keys):
        return list(_MLM_ANSWER_HEAD)
    for ours, original in _SIZED_HEADS.get(class_name, {}).items():
        if not any(key.startswith(f"{original}.4.") for key in keys):
            heads = [(p, f"{ours}.classifier." if p == f"{original}.1." else n) for p, n in heads]
            heads = [(p, n) for p, n in heads if p != f"{original}.4."]
    return heads


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

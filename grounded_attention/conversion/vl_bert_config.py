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
"""Reads our configuration from the shapes of converted VL-BERT weights."""

from collections.abc import Mapping
from typing import Any

from grounded_attention.modeling.configuration_fast_rcnn import FastRCNNConfig
from grounded_attention.modeling.configuration_vl_bert import VLBertConfig

from .errors import CheckpointError, OverrideError
from .fast_rcnn import read_image_fields
from .fields import ConfigFields, make_config, settle_fields
from .keys import Conversion

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


def read_vl_bert_fields(conversion: Conversion, given: Mapping[str, Any]) -> ConfigFields:
    """
    Reads the config fields of converted weights; sizes come from the shapes of the tensors.
    """
    given = dict(given)
    vision = _read_vision(conversion, given)
    read = {**_read_trunk(conversion), **_read_heads(conversion), **_read_answers(conversion, given)}
    if vision is None:
        read["vision_config"] = None
    elif conversion.class_name == "VLBertForPreTraining":
        # A model without a feature for masked regions masks their pixels.
        read["region_masking"] = "feature" if "region_mask_embedding.weight" in conversion.weights else "pixels"
    fields = settle_fields(read, _ASSUMED, given, VLBertConfig, PUBLIC)
    if vision is not None:
        fields.nested["vision_config"] = vision
    if "region_feature_size" not in fields.given:
        fields.read["region_feature_size"] = _feature_width(fields)
    _check_projection(conversion, make_config(VLBertConfig, fields))
    return fields


def _read_vision(conversion: Conversion, given: dict[str, Any]) -> ConfigFields | None:
    """The fields of the pixel network, removed from `given`; `None` without a pixel network."""
    inside = any(name.startswith(VISION) for name in conversion.weights)
    fields = given.pop("vision_config", {})
    if fields is None or not (inside or fields):
        return None
    if not isinstance(fields, Mapping):
        raise OverrideError(
            f"--config gives vision_config {fields!r}, expected an object of fields of FastRCNNConfig."
        )
    return read_image_fields(conversion, VISION, fields)


def _read_trunk(conversion: Conversion) -> dict[str, Any]:
    embeddings = "vl_bert.embeddings."
    vocab_size, hidden_size = conversion.shape(embeddings + "word_embeddings.weight")
    scale = conversion.weights.get(embeddings + "text_visual.norm.weight")
    fields = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": conversion.count_layers("vl_bert.encoder.layer."),
        "intermediate_size": conversion.shape("vl_bert.encoder.layer.0.intermediate.dense.weight")[0],
        "max_position_embeddings": conversion.shape(embeddings + "position_embeddings.weight")[0],
        "type_vocab_size": conversion.shape(embeddings + "token_type_embeddings.weight")[0],
        "visual_size": conversion.shape(_PROJECTION)[0],
        "visual_norm": scale is None or scale.dim() > 0,
    }
    if conversion.class_name == "VLBertModel":  # task classes set it themselves
        fields["use_pooler"] = "vl_bert.pooler.dense.weight" in conversion.weights
    return fields


def _read_heads(conversion: Conversion) -> dict[str, Any]:
    weights, fields = conversion.weights, dict[str, Any]()
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
        dense, classifier = f"{name}_head.dense.weight", f"{name}_head.classifier.weight"
        if dense in weights:
            fields[f"{name}_hidden_size"] = conversion.shape(dense)[0]
        if classifier in weights and labels is not None:
            fields[labels] = conversion.shape(classifier)[0]
    return fields


def _read_answers(conversion: Conversion, given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the answer head, and of the region classes of multiple choice."""
    weights, fields = conversion.weights, dict[str, Any]()
    if conversion.class_name == "VLBertForMultipleChoice":
        has_classes = any(name.startswith("region_class_head.") for name in weights)
        classes = conversion.shape("region_class_head.classifier.weight")[0] if has_classes else None
        fields["choice_region_classes"] = classes
    if conversion.class_name != "VLBertForVisualQuestionAnswering":
        return fields
    if {"answers", "id2label"}.isdisjoint(given):
        fields["num_labels"] = conversion.shape("answer_head.classifier.weight")[0]
    if any(name.startswith("answer_head.transform.") for name in weights):
        return {**fields, "answer_head": "mlm"}
    if not any(name.startswith("answer_head.dense.") for name in weights):
        return {**fields, "answer_head": "1fc"}
    return {**fields, "answer_head": "2fc", "answer_hidden_size": conversion.shape("answer_head.dense.weight")[0]}


def _feature_width(fields: ConfigFields) -> int:
    """The width of region features: from the pixel network, or the public width."""
    if "vision_config" in fields.nested:
        return make_config(FastRCNNConfig, fields.nested["vision_config"]).feature_size
    return _REGION_FEATURE_SIZE


def _check_projection(conversion: Conversion, config: VLBertConfig) -> None:
    """Checks that the projection has a column for every coordinate and feature value."""
    width, size = conversion.shape(_PROJECTION)[1], config.region_feature_size
    expected = 8 * config.coordinate_dim + size
    if width != expected:
        raise CheckpointError(
            f"{conversion.original(_PROJECTION)} has {width} columns, expected {expected}: 8 * coordinate_dim "
            f"{config.coordinate_dim} for coordinates and region_feature_size {size} for features. If the model has "
            "other values, give these two fields with --config."
        )

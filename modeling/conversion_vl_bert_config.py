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
"""The configuration of ours that the shapes of converted VL-BERT weights belong to."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError

from .configuration_fast_rcnn import FastRCNNConfig
from .configuration_vl_bert import VLBertConfig
from .conversion import CheckpointError, check_config_fields, find_shape, infer_attention_heads
from .conversion_fast_rcnn import infer_image_config

# Where the pixel network lies in a VL-BERT.
VISION = "vl_bert.vision_model."

# The wavelengths and the feature width of the public code.
_COORDINATE_DIM = 256
_REGION_FEATURE_SIZE = 2048


def infer_config(weights: Mapping[str, torch.Tensor], overrides: Mapping[str, Any] | None = None) -> VLBertConfig:
    """
    The configuration that a converted state dict belongs to, sizes from the shapes of its tensors.

    Args:
        weights (`Mapping[str, torch.Tensor]`): weights under our names.
        overrides (`Mapping[str, Any]`, *optional*): fields of [`VLBertConfig`] that win over what the shapes say; some
            (`num_attention_heads`, `position_offset`, dropouts) leave no trace in the shapes. Those under
            `vision_config` win one by one; `None` there leaves the pixel network out.

    Raises:
        CheckpointError: when the sizes cannot be inferred or an override is not a field.
    """
    overrides = dict(overrides or {})
    check_config_fields(overrides, VLBertConfig)
    vision = _infer_vision(weights, overrides.pop("vision_config", {}))
    fields = {**_infer_trunk(weights), **_infer_heads(weights), **_infer_answers(weights, overrides), **vision}
    fields |= overrides
    if "num_attention_heads" not in fields:
        fields["num_attention_heads"] = infer_attention_heads(fields["hidden_size"])
    if "region_feature_size" not in fields:
        fields["region_feature_size"] = _infer_region_feature_size(weights, fields["vision_config"])
    try:
        return VLBertConfig(**fields)
    except (StrictDataclassError, TypeError) as error:
        raise CheckpointError(f"the configuration does not fit together: {' '.join(str(error).split())}") from error


def _infer_trunk(weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    embeddings, layers = "vl_bert.embeddings.", re.compile(r"vl_bert\.encoder\.layer\.(\d+)\.")
    indices = [int(match.group(1)) for match in map(layers.match, weights) if match]
    vocab_size, hidden_size = find_shape(weights, embeddings + "word_embeddings.weight")
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": max(indices) + 1,
        "intermediate_size": find_shape(weights, "vl_bert.encoder.layer.0.intermediate.dense.weight")[0],
        "max_position_embeddings": find_shape(weights, embeddings + "position_embeddings.weight")[0],
        "type_vocab_size": find_shape(weights, embeddings + "token_type_embeddings.weight")[0],
        "visual_size": find_shape(weights, "vl_bert.region_encoder.projection.weight")[0],
        "visual_norm": embeddings + "text_visual.norm.bias" in weights,
        "coordinate_dim": _COORDINATE_DIM,
        "coordinate_embedding": "center",
        "use_pooler": "vl_bert.pooler.dense.weight" in weights,
    }


def _infer_heads(weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "relationship_head": "relationship_head.weight" in weights,
        "grounding_head": "grounding_head.classifier.weight" in weights,
    }
    if "mlm_head.decoder.weight" in weights:
        # In pre-training only the relationship head reads the pooler.
        fields["use_pooler"] = fields["relationship_head"]
    if "region_head.classifier.weight" in weights:
        fields["region_classes"] = find_shape(weights, "region_head.classifier.weight")[0]
    for name, labels in {
        "identification": "num_identification_labels",
        "vgp": "num_vgp_labels",
        "grounding": None,
        "choice": None,
    }.items():
        dense, classifier = f"{name}_head.dense.weight", f"{name}_head.classifier.weight"
        if dense in weights:
            fields[f"{name}_hidden_size"] = find_shape(weights, dense)[0]
        if classifier in weights and labels is not None:
            fields[labels] = find_shape(weights, classifier)[0]
    return fields


def _infer_answers(weights: Mapping[str, torch.Tensor], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the answer head and of the region classes of multiple choice."""
    fields: dict[str, Any] = {}
    if "choice_head.classifier.weight" in weights:
        classes = weights.get("region_class_head.classifier.weight")
        fields["choice_region_classes"] = None if classes is None else len(classes)
    if "answer_head.classifier.weight" not in weights:
        return fields
    if {"answers", "id2label"}.isdisjoint(overrides):
        fields["num_labels"] = len(weights["answer_head.classifier.weight"])
    if "answer_head.transform.dense.weight" in weights:
        return {**fields, "answer_head": "mlm"}
    if "answer_head.dense.weight" not in weights:
        return {**fields, "answer_head": "1fc"}
    return {**fields, "answer_head": "2fc", "answer_hidden_size": len(weights["answer_head.dense.weight"])}


def _infer_vision(weights: Mapping[str, torch.Tensor], given: Mapping[str, Any] | None) -> dict[str, Any]:
    own = {name.removeprefix(VISION): value for name, value in weights.items() if name.startswith(VISION)}
    if given is None or not (own or given):
        return {"vision_config": None}
    if not isinstance(given, Mapping):
        raise CheckpointError(f"vision_config is {given!r}, expected an object of fields of FastRCNNConfig.")
    check_config_fields(given, FastRCNNConfig)
    # In pre-training, what has no feature for masked regions blanked their pixels.
    pixels = "mlm_head.decoder.weight" in weights and "region_mask_embedding.weight" not in weights
    return {
        "vision_config": {**(infer_image_config(own) if own else {}), **given},
        "region_masking": "pixels" if pixels else "feature",
    }


def _infer_region_feature_size(weights: Mapping[str, torch.Tensor], vision: Mapping[str, Any] | None) -> int:
    size = (vision or {}).get("hidden_sizes", [_REGION_FEATURE_SIZE])[-1]
    width = find_shape(weights, "vl_bert.region_encoder.projection.weight")[1]
    if width != 8 * _COORDINATE_DIM + size:
        raise CheckpointError(
            f"image_feature_extractor.obj_downsample.1.weight reads {width} columns, expected "
            f"{8 * _COORDINATE_DIM + size} (coordinates and features); give region_feature_size in "
            "the file of --config if the features are of another width."
        )
    return size

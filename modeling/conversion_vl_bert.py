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
"""Keys of the original VL-BERT and VGP checkpoints, their places in ours, and what is left out and why.

The public code stores a state dict whose keys carry `module.` (data parallel) and, in VCR, `vlbert._module.`. Linear
layers are (out, in) there as here, so no tensor is transposed.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from .configuration_fast_rcnn import FastRCNNConfig
from .configuration_vl_bert import VLBertConfig
from .conversion import CheckpointError, Conversion
from .conversion_fast_rcnn import check_second_head, explain_image_key, infer_image_config, rename_image_key
from .modeling_vl_bert import VLBertForPreTraining, VLBertForVGP, VLBertModel, VLBertPreTrainedModel

# Original prefix -> ours, for every class. The first that matches decides; what follows the prefix stays.
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
    ("vlbert.visual_ln_text.", "vl_bert.embeddings.text_visual.norm."),
    ("vlbert.visual_ln_object.", "vl_bert.embeddings.region_visual.norm."),
    ("vlbert.visual_scale_text", "vl_bert.embeddings.text_visual.norm.weight"),
    ("vlbert.visual_scale_object", "vl_bert.embeddings.region_visual.norm.weight"),
    ("vlbert.encoder.", "vl_bert.encoder."),
    ("vlbert.pooler.", "vl_bert.pooler."),
)

# Heads by class. A task that is added later gets an entry here and loses its line in `_HEADS_OF_OTHER_TASKS`.
_HEADS = {
    "VLBertForPreTraining": (
        ("object_mask_visual_embedding.", "region_mask_embedding."),
        ("object_mask_word_embedding.", "masked_region_embedding."),
        ("vlbert.relationsip_head.caption_image_relationship.", "relationship_head."),
        ("vlbert.mlm_head.predictions.transform.", "mlm_head.transform."),
        ("vlbert.mlm_head.predictions.decoder.", "mlm_head.decoder."),
        ("vlbert.mlm_head.predictions.bias", "mlm_head.decoder.bias"),
        ("vlbert.mvrc_head.transform.dense.", "region_head.dense."),
        ("vlbert.mvrc_head.region_cls_pred.", "region_head.classifier."),
    ),
    # Index 1 is the only linear layer of a "1fc" head and the first of a "2fc" head, whose second is 4.
    "VLBertForVGP": (
        ("sentence_cls.4.", "identification_head.classifier."),
        ("sentence_cls.1.", "identification_head.dense."),
        ("phrasal_cls.4.", "vgp_head.classifier."),
        ("phrasal_cls.1.", "vgp_head.dense."),
        ("vg_cls.4.", "grounding_head.classifier."),
        ("vg_cls.1.", "grounding_head.dense."),
    ),
}

# Where the pixel network of end-to-end checkpoints goes, and what stands before all of its original keys.
_VISION, _IMAGE = "vl_bert.vision_model.", "image_feature_extractor."

# Heads of tasks that have no class here yet: prefix -> tasks. The rest of such a checkpoint becomes a `VLBertModel`.
_HEADS_OF_OTHER_TASKS = {
    "final_mlp.": "VQA, RefCOCO+ or VCR",
    "cnn_loss_reg.": "VCR (region classification)",
}

# Keys whose presence changes what the other tensors mean, so that leaving them out would be wrong: prefix -> option.
_REFUSED = {
    "vlbert.special_word_embeddings.": "word_embedding_frozen",
    "image_feature_extractor.object_embed.": "IMAGE_SEMANTIC",
}

_CLASS_BY_KEY = {
    "sentence_cls.": "VLBertForVGP",
    "phrasal_cls.": "VLBertForVGP",
    "vlbert.mlm_head.": "VLBertForPreTraining",
}
_CLASSES = {cls.__name__: cls for cls in (VLBertModel, VLBertForPreTraining, VLBertForVGP)}
_VGP_HEADS = {"identification_head": "sentence_cls", "vgp_head": "phrasal_cls", "grounding_head": "vg_cls"}

# The head size of every public configuration, and the wavelengths and feature width of the public code.
_HEAD_SIZE = 64
_COORDINATE_DIM = 256
_REGION_FEATURE_SIZE = 2048


def normalise_key(key: str) -> str:
    """Strips what data parallel and VCR's wrapper put into an original key."""
    return key.removeprefix("module.").replace("vlbert._module.", "vlbert.", 1)


def detect_class(keys: list[str]) -> str:
    """
    The class of ours for the original (normalised) keys.

    Raises:
        CheckpointError: when they are not those of a VL-BERT.
    """
    if "vlbert.word_embeddings.weight" not in keys or not any(key.startswith("vlbert.encoder.") for key in keys):
        raise CheckpointError(
            f"not a VL-BERT checkpoint: of its {len(keys)} keys (the first is {min(keys, default='absent')}) none is "
            "vlbert.word_embeddings.weight or none belongs to vlbert.encoder. Expected a pre-training or VGP "
            "checkpoint of the public VL-BERT or VGP code."
        )
    for prefix, class_name in _CLASS_BY_KEY.items():
        if any(key.startswith(prefix) for key in keys):
            return class_name
    return "VLBertModel"


def build_model(
    state_dict: Mapping[str, torch.Tensor], overrides: Mapping[str, Any] | None = None
) -> tuple[VLBertPreTrainedModel, Conversion]:
    """
    Our model with the weights of an original checkpoint, and the account of every tensor.

    What the checkpoint does not hold is initialised with seed 0; the caller's random state is left alone.

    Args:
        state_dict (`Mapping[str, torch.Tensor]`): the original weights, with or without `module.`.
        overrides (`Mapping[str, Any]`, *optional*): fields of [`VLBertConfig`], see [`infer_config`].

    Raises:
        CheckpointError: when the weights are not those of a VL-BERT, or of other sizes than the configuration's.
    """
    conversion = convert_state_dict(state_dict)
    config = infer_config(conversion.weights, overrides)
    model_class = _CLASSES[conversion.class_name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_class(config)
    prefix = "vl_bert." if model_class is VLBertModel else ""
    _fit_to_model(conversion, model, prefix)
    weights = {name.removeprefix(prefix): value for name, value in conversion.weights.items()}
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    return model, conversion


def _fit_to_model(conversion: Conversion, model: VLBertPreTrainedModel, prefix: str) -> None:
    """Checks shapes, moves tensors the class has no place for to what is left out, names what the file lacks."""
    places = {prefix + name: value.shape for name, value in model.state_dict().items()}
    for key, name in list(conversion.converted.items()):
        if name not in places:
            conversion.left_out[key] = f"no tensor of {type(model).__name__} in this configuration"
            del conversion.converted[key], conversion.weights[name]
        elif conversion.weights[name].shape != places[name]:
            raise CheckpointError(
                f"{key} has the shape {tuple(conversion.weights[name].shape)}, but the configuration expects "
                f"{tuple(places[name])}; the file is damaged, of another kind, or --config contradicts it."
            )
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    conversion.initialised = sorted(set(places) - set(conversion.weights) - tied)
    for part, begin in {"encoder": "vl_bert.encoder.", "pixel network": _VISION}.items():
        lost = [name for name in conversion.initialised if name.startswith(begin)]
        if lost:
            raise CheckpointError(
                f"the checkpoint has no tensor for {lost[0]} ({len(lost)} of the {part} are missing); it is damaged "
                "or incomplete."
            )


def convert_state_dict(state_dict: Mapping[str, torch.Tensor]) -> Conversion:
    """
    Renames an original state dict; every key ends up converted or left out with a reason.

    Args:
        state_dict (`Mapping[str, torch.Tensor]`): the original weights, with or without `module.`.

    Raises:
        CheckpointError: for another family, a key under two names, an option that is not supported, or a tensor under
            two names (decoder and words, the pixel network's last stage) that holds two things.
    """
    originals = {normalise_key(key): key for key in state_dict}
    if len(originals) < len(state_dict):
        twice = next(key for key in state_dict if originals[normalise_key(key)] != key)
        raise CheckpointError(
            f"{twice} and {originals[normalise_key(twice)]} are one key; expected every tensor under one name."
        )
    conversion = Conversion(detect_class(list(originals)))
    places = _list_places(conversion.class_name, originals)
    for key, original in originals.items():
        _refuse_options(key)
        name = _rename(key, places) or _rename_image_key(key)
        if name is None:
            conversion.left_out[original] = _explain(key)
        else:
            conversion.converted[original] = name
            conversion.weights[name] = state_dict[original].float()
    check_second_head(state_dict)
    _check_tied_decoder(conversion.weights)
    _permute_pair_features(conversion.weights)
    return conversion


def _list_places(class_name: str, keys: Mapping[str, str]) -> list[tuple[str, str]]:
    heads = list(_HEADS.get(class_name, ()))
    for ours, original in _VGP_HEADS.items():
        if f"{original}.4.weight" not in keys:
            heads = [(f"{original}.1.", f"{ours}.classifier.") if p == f"{original}.1." else (p, n) for p, n in heads]
    return [*_TRUNK, *heads]


def _rename(key: str, places: list[tuple[str, str]]) -> str | None:
    for prefix, name in places:
        if key.startswith(prefix):
            return name + key.removeprefix(prefix)
    return None


def _rename_image_key(key: str) -> str | None:
    name = rename_image_key(key) if key.startswith(_IMAGE) else None
    return None if name is None else _VISION + name


def _refuse_options(key: str) -> None:
    for prefix, option in _REFUSED.items():
        if key.startswith(prefix):
            raise CheckpointError(
                f"{key}: trained with {option}, which no public checkpoint uses and we do not support."
            )


def _explain(key: str) -> str:
    reason = explain_image_key(key) if key.startswith(_IMAGE) else None
    if reason is not None:
        return reason
    for prefix, tasks in _HEADS_OF_OTHER_TASKS.items():
        if key.startswith(prefix):
            return f"head of {tasks}, a task without a class here yet"
    if key.startswith(tuple(prefix for heads in _HEADS.values() for prefix, _ in heads)):
        return "part of a pre-training or task head that the checkpoint's own class does not have"
    return "unknown key: not one of the public code's"


def _check_tied_decoder(weights: dict[str, torch.Tensor]) -> None:
    decoder = weights.get("mlm_head.decoder.weight")
    words = weights["vl_bert.embeddings.word_embeddings.weight"]
    if decoder is not None and not torch.equal(decoder, words):
        raise CheckpointError(
            "vlbert.mlm_head.predictions.decoder.weight differs from vlbert.word_embeddings.weight; expected one "
            "tensor under two names, as the public code ties them."
        )


def _permute_pair_features(weights: dict[str, torch.Tensor]) -> None:
    """The public code's [e1, e2, |e1 - e2|, e1 * e2] to the paper's order, [e1, e2, e1 * e2, |e1 - e2|]."""
    for name in ("vgp_head.dense.weight", "vgp_head.classifier.weight"):
        if name in weights:
            first, second, difference, product = weights[name].chunk(4, dim=1)
            weights[name] = torch.cat([first, second, product, difference], dim=1)
            return


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
    _check_fields(overrides, VLBertConfig)
    vision = _infer_vision(weights, overrides.pop("vision_config", {}))
    fields = {**_infer_trunk(weights), **_infer_heads(weights), **vision, **overrides}
    if "num_attention_heads" not in fields:
        fields["num_attention_heads"] = _infer_attention_heads(fields["hidden_size"])
    if "region_feature_size" not in fields:
        fields["region_feature_size"] = _infer_region_feature_size(weights, fields["vision_config"])
    try:
        return VLBertConfig(**fields)
    except (StrictDataclassError, TypeError) as error:
        raise CheckpointError(f"the configuration does not fit together: {' '.join(str(error).split())}") from error


def _check_fields(fields: Mapping[str, Any], config_class: type[PreTrainedConfig]) -> None:
    unknown = sorted(set(fields) - set(config_class().to_dict()))
    if unknown:
        raise CheckpointError(f"unknown configuration field {unknown[0]}; expected fields of {config_class.__name__}.")


def _infer_trunk(weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    embeddings, layers = "vl_bert.embeddings.", re.compile(r"vl_bert\.encoder\.layer\.(\d+)\.")
    indices = [int(match.group(1)) for match in map(layers.match, weights) if match]
    vocab_size, hidden_size = _shape(weights, embeddings + "word_embeddings.weight")
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": max(indices) + 1,
        "intermediate_size": _shape(weights, "vl_bert.encoder.layer.0.intermediate.dense.weight")[0],
        "max_position_embeddings": _shape(weights, embeddings + "position_embeddings.weight")[0],
        "type_vocab_size": _shape(weights, embeddings + "token_type_embeddings.weight")[0],
        "visual_size": _shape(weights, "vl_bert.region_encoder.projection.weight")[0],
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
        fields["region_classes"] = _shape(weights, "region_head.classifier.weight")[0]
    for name, labels in {
        "identification": "num_identification_labels",
        "vgp": "num_vgp_labels",
        "grounding": None,
    }.items():
        dense, classifier = f"{name}_head.dense.weight", f"{name}_head.classifier.weight"
        if dense in weights:
            fields[f"{name}_hidden_size"] = _shape(weights, dense)[0]
        if classifier in weights and labels is not None:
            fields[labels] = _shape(weights, classifier)[0]
    return fields


def _infer_vision(weights: Mapping[str, torch.Tensor], given: Mapping[str, Any] | None) -> dict[str, Any]:
    own = {name.removeprefix(_VISION): value for name, value in weights.items() if name.startswith(_VISION)}
    if given is None or not (own or given):
        return {"vision_config": None}
    if not isinstance(given, Mapping):
        raise CheckpointError(f"vision_config is {given!r}, expected an object of fields of FastRCNNConfig.")
    _check_fields(given, FastRCNNConfig)
    # In pre-training, what has no feature for masked regions blanked their pixels.
    pixels = "mlm_head.decoder.weight" in weights and "region_mask_embedding.weight" not in weights
    return {
        "vision_config": {**(infer_image_config(own) if own else {}), **given},
        "region_masking": "pixels" if pixels else "feature",
    }


def _infer_attention_heads(hidden_size: int) -> int:
    if hidden_size % _HEAD_SIZE != 0:
        raise CheckpointError(
            f"the hidden size, {hidden_size}, is no multiple of {_HEAD_SIZE}, the head size of the public "
            "configurations; give num_attention_heads in the file of --config."
        )
    return hidden_size // _HEAD_SIZE


def _infer_region_feature_size(weights: Mapping[str, torch.Tensor], vision: Mapping[str, Any] | None) -> int:
    size = (vision or {}).get("hidden_sizes", [_REGION_FEATURE_SIZE])[-1]
    width = _shape(weights, "vl_bert.region_encoder.projection.weight")[1]
    if width != 8 * _COORDINATE_DIM + size:
        raise CheckpointError(
            f"image_feature_extractor.obj_downsample.1.weight reads {width} columns, expected "
            f"{8 * _COORDINATE_DIM + size} (coordinates and features); give region_feature_size in "
            "the file of --config if the features are of another width."
        )
    return size


def _shape(weights: Mapping[str, torch.Tensor], name: str) -> torch.Size:
    if name not in weights:
        raise CheckpointError(f"the checkpoint has no tensor for {name}, without which its size is unknown.")
    return weights[name].shape

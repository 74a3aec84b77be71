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

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .conversion import CheckpointError, Conversion, fit_to_model
from .conversion_fast_rcnn import check_second_head, explain_image_key, rename_image_key
from .conversion_vl_bert_config import VISION, infer_config
from .modeling_vl_bert import (
    VLBertForMultipleChoice,
    VLBertForPreTraining,
    VLBertForReferringExpression,
    VLBertForVGP,
    VLBertForVisualQuestionAnswering,
    VLBertModel,
    VLBertPreTrainedModel,
)

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

# Heads by class.
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
        ("final_mlp.0.", "answer_head.transform."),
        ("final_mlp.2.", "answer_head.classifier."),
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

# What stands before all original keys of the pixel network of end-to-end checkpoints.
_IMAGE = "image_feature_extractor."

# Keys whose presence changes what the other tensors mean, so that leaving them out would be wrong: prefix -> option.
_REFUSED = {
    "vlbert.special_word_embeddings.": "word_embedding_frozen",
    "image_feature_extractor.object_embed.": "IMAGE_SEMANTIC",
}

# The first that some key starts with decides. "vlbert._module." is how VCR's code wraps the core.
_CLASS_BY_KEY = {
    "sentence_cls.": "VLBertForVGP",
    "phrasal_cls.": "VLBertForVGP",
    "vlbert.mlm_head.": "VLBertForPreTraining",
    "cnn_loss_reg.": "VLBertForMultipleChoice",
    "vlbert._module.": "VLBertForMultipleChoice",
    "final_mlp.0.LayerNorm.": "VLBertForVisualQuestionAnswering",
    "final_mlp.0.": "VLBertForReferringExpression",
    "final_mlp.1.": "VLBertForVisualQuestionAnswering",
}
_CLASSES = {
    cls.__name__: cls
    for cls in (
        VLBertModel,
        VLBertForMultipleChoice,
        VLBertForPreTraining,
        VLBertForReferringExpression,
        VLBertForVGP,
        VLBertForVisualQuestionAnswering,
    )
}
# Heads of one or two layers by class: ours -> original.
_SIZED_HEADS = {
    "VLBertForMultipleChoice": {"choice_head": "final_mlp"},
    "VLBertForVGP": {
        "identification_head": "sentence_cls",
        "vgp_head": "phrasal_cls",
        "grounding_head": "vg_cls",
    },
    "VLBertForVisualQuestionAnswering": {"answer_head": "final_mlp"},
}


def normalise_key(key: str) -> str:
    """Strips what data parallel and VCR's wrapper put into an original key."""
    return key.removeprefix("module.").replace("vlbert._module.", "vlbert.", 1)


def detect_class(original_keys: Iterable[str]) -> str:
    """
    The class of ours for the original keys, with or without `module.`.

    Raises:
        CheckpointError: when they are not those of a VL-BERT.
    """
    bare = [key.removeprefix("module.") for key in original_keys]
    keys = [normalise_key(key) for key in bare]
    if "vlbert.word_embeddings.weight" not in keys or not any(key.startswith("vlbert.encoder.") for key in keys):
        raise CheckpointError(
            f"not a VL-BERT checkpoint: of its {len(keys)} keys (the first is {min(keys, default='absent')}) none is "
            "vlbert.word_embeddings.weight or none belongs to vlbert.encoder. Expected a pre-training or task "
            "checkpoint of the public VL-BERT or VGP code."
        )
    for prefix, class_name in _CLASS_BY_KEY.items():
        if any(key.startswith(prefix) for key in bare):
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
    fit_to_model(conversion, model, prefix, {"encoder": "vl_bert.encoder.", "pixel network": VISION})
    weights = {name.removeprefix(prefix): value for name, value in conversion.weights.items()}
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    return model, conversion


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
    conversion = Conversion(detect_class(state_dict))
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
    for ours, original in _SIZED_HEADS.get(class_name, {}).items():
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
    return None if name is None else VISION + name


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

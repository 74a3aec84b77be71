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
"""Checkpoints of the public VisualBERT code (`.th`) as models of this family; every key is accounted for."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError

from .configuration_visualbert import VisualBERTConfig
from .conversion import (
    CheckpointError,
    Conversion,
    check_config_fields,
    find_shape,
    fit_to_model,
    infer_attention_heads,
)
from .modeling_visualbert import (
    VisualBERTForMultipleChoice,
    VisualBERTForPhraseGrounding,
    VisualBERTForPreTraining,
    VisualBERTForVisualQuestionAnswering,
    VisualBERTForVisualReasoning,
    VisualBERTModel,
    VisualBERTPreTrainedModel,
)

_TRUNK = "visual_bert."
_CLASSES: dict[str, type[VisualBERTPreTrainedModel]] = {
    cls.__name__: cls
    for cls in (
        VisualBERTForMultipleChoice,
        VisualBERTForPhraseGrounding,
        VisualBERTForPreTraining,
        VisualBERTForVisualQuestionAnswering,
        VisualBERTForVisualReasoning,
        VisualBERTModel,
    )
}
# Prefix of an original key, its wrappers taken off -> prefix here; the first that fits.
_PLACES = (
    ("bert.embeddings.token_type_embeddings_visual.", "visual_bert.embeddings.visual_token_type_embeddings."),
    ("bert.embeddings.position_embeddings_visual.", "visual_bert.embeddings.visual_position_embeddings."),
    ("bert.embeddings.projection.", "visual_bert.embeddings.visual_projection."),
    ("bert.", _TRUNK),
    ("additional_layer.", "visual_bert.additional_layer."),
    ("flickr_attention.", "attention."),
)
# Rows of a classifier -> its class; any other number is of answers.
_CLASSIFIERS = {1: "VisualBERTForMultipleChoice", 2: "VisualBERTForVisualReasoning"}


def normalise_keys(original_keys: Iterable[str]) -> dict[str, str]:
    """
    Original key -> the key without what data parallel (`module.`) and AllenNLP's wrapper (`bert.`) put in front.

    Raises:
        CheckpointError: two keys are one without that, or they are not those of a VisualBERT.
    """
    keys = {key: key.removeprefix("module.") for key in original_keys}
    if any(key.startswith("bert.bert.") for key in keys.values()):
        keys = {key: bare.removeprefix("bert.") for key, bare in keys.items()}
    twice = [key for key, bare in keys.items() if list(keys.values()).count(bare) > 1]
    if twice:
        raise CheckpointError(f"{twice[0]} and {twice[1]} are one key; expected every tensor under one name.")
    wanted = ("bert.embeddings.token_type_embeddings_visual.weight", "bert.encoder.layer.0.")
    if not all(any(bare.startswith(prefix) for bare in keys.values()) for prefix in wanted):
        raise CheckpointError(
            f"not a VisualBERT checkpoint: of its {len(keys)} keys (the first is {min(keys, default='absent')}) none "
            f"is {wanted[0]} or none belongs to {wanted[1]} Expected a pre-training or task checkpoint of the public "
            "VisualBERT code."
        )
    return keys


def detect_class(weights: Mapping[str, torch.Tensor]) -> str:
    """The class of ours for original weights without wrappers, named by its head."""
    if any(key.startswith("flickr_attention.") for key in weights):
        return "VisualBERTForPhraseGrounding"
    if "classifier.weight" in weights:
        return _CLASSIFIERS.get(len(weights["classifier.weight"]), "VisualBERTForVisualQuestionAnswering")
    return "VisualBERTForPreTraining" if "cls.predictions.bias" in weights else "VisualBERTModel"


def convert_state_dict(state_dict: Mapping[str, torch.Tensor]) -> Conversion:
    """
    Renames an original state dict; every key ends up converted or left out with a reason.

    Args:
        state_dict (`Mapping[str, torch.Tensor]`): the original weights, with or without wrappers.

    Raises:
        CheckpointError: for another family, a key under two names, or a decoder that differs from the words.
    """
    keys = normalise_keys(state_dict)
    weights = {bare: state_dict[key] for key, bare in keys.items()}
    conversion = Conversion(detect_class(weights))
    for key, bare in keys.items():
        reason = _explain(bare, conversion.class_name)
        if reason is not None:
            conversion.left_out[key] = reason
            continue
        name = _rename(bare)
        conversion.converted[key] = name
        conversion.weights[name] = state_dict[key].float()
    _check_tied_decoder(conversion.weights)
    return conversion


def _explain(key: str, class_name: str) -> str | None:
    """Why a key has no place here; None for one that has."""
    if "detector" in key:
        return "the detector of VCR, which makes region features from pixels: give features instead"
    if key.endswith("position_ids"):
        return "a constant, 0, 1, 2, ..."
    if key.startswith("cls.") and class_name not in ("VisualBERTForPreTraining", "VisualBERTForPhraseGrounding"):
        return "part of the pre-training heads that the checkpoint's own class does not have"
    known = (*(prefix for prefix, _ in _PLACES), "cls.", "classifier.")
    return None if key.startswith(known) else "unknown key: not one of the public code's"


def _rename(key: str) -> str:
    if key.startswith("classifier."):
        return key.replace("classifier.", "cls.", 1)
    for prefix, name in _PLACES:
        if key.startswith(prefix):
            return name + key.removeprefix(prefix)
    return key


def _check_tied_decoder(weights: Mapping[str, torch.Tensor]) -> None:
    decoder, words = (
        weights.get(name)
        for name in ("cls.predictions.decoder.weight", "visual_bert.embeddings.word_embeddings.weight")
    )
    if decoder is not None and words is not None and not torch.equal(decoder, words):
        raise CheckpointError(
            "cls.predictions.decoder.weight differs from bert.embeddings.word_embeddings.weight; expected one tensor "
            "under two names, as the public code ties them."
        )


def infer_config(
    weights: Mapping[str, torch.Tensor], class_name: str, overrides: Mapping[str, Any] | None = None
) -> VisualBERTConfig:
    """
    The configuration that a converted state dict belongs to, sizes from the shapes of its tensors.

    Args:
        weights (`Mapping[str, torch.Tensor]`): weights under our names.
        class_name (`str`): the class they are of.
        overrides (`Mapping[str, Any]`, *optional*): fields of [`VisualBERTConfig`] that win over what the shapes say;
            some (`num_attention_heads`, dropouts) leave no trace in the shapes.

    Raises:
        CheckpointError: when the sizes cannot be inferred or an override is not a field.
    """
    overrides = dict(overrides or {})
    check_config_fields(overrides, VisualBERTConfig)
    embeddings, layers = _TRUNK + "embeddings.", re.compile(r"visual_bert\.encoder\.layer\.(\d+)\.")
    vocab_size, hidden_size = find_shape(weights, embeddings + "word_embeddings.weight")
    fields: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": max(int(match.group(1)) for match in map(layers.match, weights) if match) + 1,
        "intermediate_size": find_shape(weights, _TRUNK + "encoder.layer.0.intermediate.dense.weight")[0],
        "max_position_embeddings": find_shape(weights, embeddings + "position_embeddings.weight")[0],
        "type_vocab_size": find_shape(weights, embeddings + "token_type_embeddings.weight")[0],
        "visual_embedding_dim": find_shape(weights, embeddings + "visual_projection.weight")[1],
        "bypass_transformer": any(name.startswith(_TRUNK + "additional_layer.") for name in weights),
    }
    if class_name == "VisualBERTForVisualQuestionAnswering" and {"answers", "id2label"}.isdisjoint(overrides):
        fields["num_labels"] = len(weights["cls.weight"])
    fields |= overrides
    if "num_attention_heads" not in fields:
        fields["num_attention_heads"] = infer_attention_heads(fields["hidden_size"])
    try:
        return VisualBERTConfig(**fields)
    except (StrictDataclassError, TypeError) as error:
        raise CheckpointError(f"the configuration does not fit together: {' '.join(str(error).split())}") from error


def build_model(
    state_dict: Mapping[str, torch.Tensor], overrides: Mapping[str, Any] | None = None
) -> tuple[VisualBERTPreTrainedModel, Conversion]:
    """
    Our model with the weights of an original checkpoint, and the account of every tensor.

    What the checkpoint does not hold is initialised with seed 0; the caller's random state is left alone.

    Args:
        state_dict (`Mapping[str, torch.Tensor]`): the original weights, with or without wrappers.
        overrides (`Mapping[str, Any]`, *optional*): fields of [`VisualBERTConfig`], see [`infer_config`].

    Raises:
        CheckpointError: when the weights are not those of a VisualBERT, or of other sizes than the configuration's.
    """
    conversion = convert_state_dict(state_dict)
    config = infer_config(conversion.weights, conversion.class_name, overrides)
    model_class = _CLASSES[conversion.class_name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_class(config)
    prefix = _TRUNK if model_class is VisualBERTModel else ""
    parts = {"embeddings": _TRUNK + "embeddings.", "encoder": _TRUNK + "encoder."}
    fit_to_model(conversion, model, prefix, parts)
    weights = {name.removeprefix(prefix): value for name, value in conversion.weights.items()}
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    return model, conversion

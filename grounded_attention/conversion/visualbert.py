# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Converts checkpoints of the public VisualBERT code (`.th`); every key is recorded."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from grounded_attention.modeling.configuration_visualbert import VisualBERTConfig
from grounded_attention.modeling.modeling_visualbert import (
    VisualBERTForMultipleChoice,
    VisualBERTForPhraseGrounding,
    VisualBERTForPreTraining,
    VisualBERTForVisualQuestionAnswering,
    VisualBERTForVisualReasoning,
    VisualBERTModel,
)

from .fields import ConfigFields, settle_fields
from .keys import Conversion, Rename, Wrapper, rename_prefix
from .original_family import OriginalFamily, check_same

_TRUNK = "visual_bert."
_EMBEDDINGS = "visual_bert.embeddings."
# Prefix of an original key without wrappers -> our prefix; the first match applies.
_RULES = partial(
    rename_prefix,
    (
        ("bert.embeddings.token_type_embeddings_visual.", _EMBEDDINGS + "visual_token_type_embeddings."),
        ("bert.embeddings.position_embeddings_visual.", _EMBEDDINGS + "visual_position_embeddings."),
        ("bert.embeddings.projection.", _EMBEDDINGS + "visual_projection."),
        ("bert.", _TRUNK),
        ("flickr_attention.", "attention."),
    ),
)
_PRETRAINING_HEADS = partial(rename_prefix, (("cls.", "cls."),))
_CLASSIFIER = partial(rename_prefix, (("classifier.", "cls."),))
# Rows of a classifier -> its class; any other number is a number of answers.
_CLASSIFIERS = {1: "VisualBERTForMultipleChoice", 2: "VisualBERTForVisualReasoning"}

# Field -> our name of the tensor that determines it, and the dimension.
_SIZES = {
    "vocab_size": ("visual_bert.embeddings.word_embeddings.weight", 0),
    "hidden_size": ("visual_bert.embeddings.word_embeddings.weight", 1),
    "intermediate_size": ("visual_bert.encoder.layer.0.intermediate.dense.weight", 0),
    "max_position_embeddings": ("visual_bert.embeddings.position_embeddings.weight", 0),
    "type_vocab_size": ("visual_bert.embeddings.token_type_embeddings.weight", 0),
    "visual_embedding_dim": ("visual_bert.embeddings.visual_projection.weight", 1),
}


class VisualBERTFamily(OriginalFamily):
    """The converter for files of the public VisualBERT code."""

    title = "VisualBERT"
    expected = "a pre-training or task checkpoint of the public VisualBERT code"
    config_class = VisualBERTConfig
    model_classes = (
        VisualBERTModel,
        VisualBERTForMultipleChoice,
        VisualBERTForPhraseGrounding,
        VisualBERTForPreTraining,
        VisualBERTForVisualQuestionAnswering,
        VisualBERTForVisualReasoning,
    )
    base_prefix = _TRUNK
    wrappers = (Wrapper("bert.", "", "bert.bert."),)  # of AllenNLP
    public = ({"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},)

    def detect_class(self, weights: Mapping[str, Tensor], original_keys: Collection[str]) -> str:
        if any(key.startswith("flickr_attention.") for key in weights):
            return "VisualBERTForPhraseGrounding"
        classifier = next((value for key, value in weights.items() if key.startswith("classifier.")), None)
        if classifier is not None:
            return _CLASSIFIERS.get(
                classifier.shape[0] if classifier.dim() else 0, "VisualBERTForVisualQuestionAnswering"
            )
        pretraining = any(key.startswith("cls.predictions.") for key in weights)
        if pretraining:
            return "VisualBERTForPreTraining"
        return "VisualBERTModel"

    def list_rules(self, class_name: str, keys: Collection[str]) -> Sequence[Rename]:
        return (_RULES, _PRETRAINING_HEADS if _has_pretraining_heads(class_name) else _CLASSIFIER)

    def explain(self, key: str, class_name: str) -> str | None:
        """The reason for detectors, constants, and unused heads in the file of a task."""
        if "detector" in key:
            return "detector of VCR, which computes region features from pixels; this model reads features"
        if key.endswith("position_ids"):
            return "a constant: 0, 1, 2, ..."
        if key.startswith("cls.") and not _has_pretraining_heads(class_name):
            return "part of the pre-training heads, which the class of this checkpoint does not have"
        return None

    def finish(self, conversion: Conversion, weights: Mapping[str, Tensor]) -> None:
        check_same(conversion, "cls.predictions.decoder.weight", _EMBEDDINGS + "word_embeddings.weight")

    def read_fields(self, conversion: Conversion, overrides: Mapping[str, Any]) -> ConfigFields:
        """Reads sizes from the shapes; other fields have the values of public configurations."""
        read: dict[str, Any] = conversion.read_sizes(_SIZES)
        read["num_hidden_layers"] = conversion.count_layers("visual_bert.encoder.layer.")
        if conversion.class_name == "VisualBERTForVisualQuestionAnswering" and {"answers", "id2label"}.isdisjoint(
            overrides
        ):
            read["num_labels"] = conversion.shape("cls.weight")[0]
        assumed = {"hidden_act": "gelu", "layer_norm_eps": 1e-12}
        return settle_fields(read, assumed, overrides, VisualBERTConfig, self.public)


def _has_pretraining_heads(class_name: str) -> bool:
    return class_name in ("VisualBERTForPreTraining", "VisualBERTForPhraseGrounding")


VISUALBERT = VisualBERTFamily()

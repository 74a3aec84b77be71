# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Converts checkpoints of the public VisualBERT code (`.th`); every key is recorded."""

from typing import ClassVar

from grounded_attention.modeling.configuration_visualbert import VisualBERTConfig
from grounded_attention.modeling.modeling_visualbert import (
    VisualBERTForMultipleChoice,
    VisualBERTForPhraseGrounding,
    VisualBERTForPreTraining,
    VisualBERTForVisualQuestionAnswering,
    VisualBERTForVisualReasoning,
    VisualBERTModel,
)
from grounded_attention.utils.named_types import Columns

from .keys import Conversion, Keys, Pairs, Weights, Wrapper
from .original_family import CONSTANTS, OriginalFamily

_WORDS = "visual_bert.embeddings.word_embeddings.weight"
EMBEDDINGS = (
    ("bert.embeddings.token_type_embeddings_visual.", "visual_bert.embeddings.visual_token_type_embeddings."),
    ("bert.embeddings.position_embeddings_visual.", "visual_bert.embeddings.visual_position_embeddings."),
    ("bert.embeddings.projection.", "visual_bert.embeddings.visual_projection."),
)
_PRETRAINING = (("cls.", "cls."),)
_CLASSIFIER = (("classifier.", "cls."),)
# Rows of a classifier -> its class; any other number is a number of answers.
_CLASSIFIERS = {1: "VisualBERTForMultipleChoice", 2: "VisualBERTForVisualReasoning"}


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
    classes = {
        "flickr_attention.": "VisualBERTForPhraseGrounding",
        "classifier.": "VisualBERTForVisualQuestionAnswering",
        "cls.predictions.": "VisualBERTForPreTraining",
    }
    base_prefix = "visual_bert."
    wrappers = (Wrapper("bert.", "", "bert.bert."),)  # of AllenNLP
    trunk: ClassVar[Pairs] = (
        *EMBEDDINGS,
        ("bert.", "visual_bert."),
        ("additional_layer.", "visual_bert.additional_layer."),
        ("flickr_attention.", "attention."),
    )
    heads = {
        "VisualBERTForPreTraining": _PRETRAINING,
        "VisualBERTForPhraseGrounding": _PRETRAINING,
        "VisualBERTForMultipleChoice": _CLASSIFIER,
        "VisualBERTForVisualReasoning": _CLASSIFIER,
        "VisualBERTForVisualQuestionAnswering": _CLASSIFIER,
    }
    ignored = {
        **CONSTANTS,
        "detector": "detector of VCR, which computes region features from pixels; this model reads features",
    }
    tied = ("cls.predictions.decoder.weight", _WORDS)
    sizes = {
        "vocab_size": (_WORDS, 0),
        "hidden_size": (_WORDS, 1),
        "intermediate_size": ("visual_bert.encoder.layer.0.intermediate.dense.weight", 0),
        "max_position_embeddings": ("visual_bert.embeddings.position_embeddings.weight", 0),
        "type_vocab_size": ("visual_bert.embeddings.token_type_embeddings.weight", 0),
        "visual_embedding_dim": ("visual_bert.embeddings.visual_projection.weight", 1),
    }
    layers = {"num_hidden_layers": "visual_bert.encoder.layer."}
    answers = {"VisualBERTForVisualQuestionAnswering": "cls.weight"}
    assumed = {"hidden_act": "gelu", "layer_norm_eps": 1e-12}
    public = ({"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},)

    def detect_class(self, weights: Weights, originals: Keys) -> str:
        """Finds the class by the heads; a classifier with one or two rows has no answers."""
        name = super().detect_class(weights, originals)
        classifier = next((value for key, value in weights.items() if key.startswith("classifier.")), None)
        if name != "VisualBERTForVisualQuestionAnswering" or classifier is None or not classifier.dim():
            return name
        return _CLASSIFIERS.get(classifier.shape[0], name)

    def read_more(self, conversion: Conversion, overrides: Columns, read: Columns) -> Columns:
        """Whether the file has the layer of a model without early fusion."""
        late = any(name.startswith("visual_bert.additional_layer.") for name in conversion.weights)
        return {"bypass_transformer": late}


VISUALBERT = VisualBERTFamily()

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Converts checkpoints of the public LXMERT code (`.pth`); every key is recorded.

Checkpoints of the LXMERT in transformers need no conversion: the classes of this project load them.
"""

from typing import ClassVar

from grounded_attention.modeling.configuration_lxmert import LXMERTConfig
from grounded_attention.modeling.modeling_lxmert import (
    LXMERTForPreTraining,
    LXMERTForVisualQuestionAnswering,
    LXMERTForVisualReasoning,
    LXMERTModel,
)
from grounded_attention.utils.named_types import Columns, Fields

from .fields import ConfigFields
from .keys import Conversion, Keys, Pairs, Weights, Wrapper
from .original_family import OriginalFamily

_WORDS = "lxmert.embeddings.word_embeddings.weight"
_ANSWERS = "answer_head.logit_fc.3.weight"


class LXMERTFamily(OriginalFamily):
    """The converter for files of the public LXMERT code."""

    title = "LXMERT"
    expected = "a pre-training or task checkpoint of the public LXMERT code"
    config_class = LXMERTConfig
    model_classes = (LXMERTModel, LXMERTForPreTraining, LXMERTForVisualQuestionAnswering, LXMERTForVisualReasoning)
    classes = {"cls.": "LXMERTForPreTraining"}
    base_prefix = "lxmert."
    # The second wrapper is that of the task models.
    wrappers = (Wrapper("lxrt_encoder.model.", "", "lxrt_encoder.model."),)
    trunk: ClassVar[Pairs] = (("bert.", "lxmert."),)
    heads = {
        "LXMERTForPreTraining": (
            ("cls.", "cls."),
            ("obj_predict_head.", "obj_predict_head."),
            ("answer_head.", "answer_head."),
        ),
        "LXMERTForVisualQuestionAnswering": (("logit_fc.", "answer_head.logit_fc."),),
        "LXMERTForVisualReasoning": (
            ("logit_fc.0.", "reasoning_head.dense."),
            ("logit_fc.2.", "reasoning_head.LayerNorm."),
            ("logit_fc.3.", "reasoning_head.classifier."),
        ),
    }
    tied = ("cls.predictions.decoder.weight", _WORDS)
    sizes = {
        "vocab_size": (_WORDS, 0),
        "hidden_size": (_WORDS, 1),
        "intermediate_size": ("lxmert.encoder.layer.0.intermediate.dense.weight", 0),
        "max_position_embeddings": ("lxmert.embeddings.position_embeddings.weight", 0),
        "type_vocab_size": ("lxmert.embeddings.token_type_embeddings.weight", 0),
        "visual_feat_dim": ("lxmert.encoder.visn_fc.visn_fc.weight", 1),
    }
    layers = {
        "l_layers": "lxmert.encoder.layer.",
        "r_layers": "lxmert.encoder.r_layers.",
        "x_layers": "lxmert.encoder.x_layers.",
    }
    answers = {"LXMERTForVisualQuestionAnswering": _ANSWERS}
    assumed = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "visual_loss": "released"}
    # The number of heads is that of public files, or of --config.
    public = ({"hidden_size": 768, "l_layers": 9, "r_layers": 5, "x_layers": 5, "num_attention_heads": 12},)

    def detect_class(self, weights: Weights, originals: Keys) -> str:
        """Finds the class by the heads; the head of two images reads twice the hidden size."""
        first = weights.get("logit_fc.0.weight")
        if first is None:
            return super().detect_class(weights, originals)
        pooler = weights.get("bert.pooler.dense.weight")
        hidden_size = 0 if pooler is None else pooler.shape[0]
        if first.shape[1] == 2 * hidden_size:
            return "LXMERTForVisualReasoning"
        return "LXMERTForVisualQuestionAnswering"

    def read_fields(self, conversion: Conversion, overrides: Columns) -> ConfigFields:
        """The answers of --answers are those of pre-training in its file."""
        if conversion.class_name == "LXMERTForPreTraining":
            overrides = {"qa_answers" if name == "answers" else name: value for name, value in overrides.items()}
        return super().read_fields(conversion, overrides)

    def read_more(self, conversion: Conversion, overrides: Columns, read: Columns) -> Columns:
        """Which heads of pre-training there are, and their sizes."""
        if conversion.class_name != "LXMERTForPreTraining":
            return {}
        decoders = {name: f"obj_predict_head.decoder_dict.{name}.weight" for name in ("obj", "attr", "feat")}
        fields: Fields = {f"visual_{name}_loss": decoder in conversion.weights for name, decoder in decoders.items()}
        fields["task_obj_predict"] = "obj_predict_head.transform.dense.weight" in conversion.weights
        fields["task_qa"] = _ANSWERS in conversion.weights
        counted = {
            "num_object_labels": decoders["obj"],
            "num_attr_labels": decoders["attr"],
            "num_qa_labels": _ANSWERS,
        }
        for field, name in counted.items():
            if name in conversion.weights:
                fields[field] = conversion.shape(name)[0]
        return fields


LXMERT = LXMERTFamily()

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Converts checkpoints of the public LXMERT code (`.pth`); every key is recorded.

Checkpoints of the LXMERT in transformers need no conversion: the classes of this project load them.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from grounded_attention.modeling.configuration_lxmert import LXMERTConfig
from grounded_attention.modeling.modeling_lxmert import (
    LXMERTForPreTraining,
    LXMERTForVisualQuestionAnswering,
    LXMERTForVisualReasoning,
    LXMERTModel,
)

from .fields import ConfigFields, settle_fields
from .keys import Conversion, Rename, Wrapper, rename_prefix
from .original_family import OriginalFamily, check_same

_TRUNK = "lxmert."
_PRETRAINING = partial(
    rename_prefix,
    (
        ("bert.", _TRUNK),
        ("cls.", "cls."),
        ("obj_predict_head.", "obj_predict_head."),
        ("answer_head.", "answer_head."),
    ),
)
_ANSWERS = partial(rename_prefix, (("bert.", _TRUNK), ("logit_fc.", "answer_head.logit_fc.")))
_REASONING = partial(
    rename_prefix,
    (
        ("bert.", _TRUNK),
        ("logit_fc.0.", "reasoning_head.dense."),
        ("logit_fc.2.", "reasoning_head.LayerNorm."),
        ("logit_fc.3.", "reasoning_head.classifier."),
    ),
)

# Field -> our name of the tensor that determines it, and the dimension.
_SIZES = {
    "vocab_size": ("lxmert.embeddings.word_embeddings.weight", 0),
    "hidden_size": ("lxmert.embeddings.word_embeddings.weight", 1),
    "intermediate_size": ("lxmert.encoder.layer.0.intermediate.dense.weight", 0),
    "max_position_embeddings": ("lxmert.embeddings.position_embeddings.weight", 0),
    "type_vocab_size": ("lxmert.embeddings.token_type_embeddings.weight", 0),
    "visual_feat_dim": ("lxmert.encoder.visn_fc.visn_fc.weight", 1),
}


class LXMERTFamily(OriginalFamily):
    """The converter for files of the public LXMERT code."""

    title = "LXMERT"
    expected = "a pre-training or task checkpoint of the public LXMERT code"
    config_class = LXMERTConfig
    model_classes = (LXMERTModel, LXMERTForPreTraining, LXMERTForVisualQuestionAnswering, LXMERTForVisualReasoning)
    base_prefix = _TRUNK
    # The second wrapper is that of the task models.
    wrappers = (Wrapper("lxrt_encoder.model.", "", "lxrt_encoder.model."),)
    public = ({"hidden_size": 768, "l_layers": 9, "r_layers": 5, "x_layers": 5, "num_attention_heads": 12},)

    def detect_class(self, weights: Mapping[str, Tensor], original_keys: Collection[str]) -> str:
        """Finds the class by the heads; the head of two images reads twice the hidden size."""
        first = weights.get("logit_fc.0.weight")
        if first is not None:
            hidden_size = weights["bert.pooler.dense.weight"].shape[0] if "bert.pooler.dense.weight" in weights else 0
            if first.shape[1] == 2 * hidden_size:
                return "LXMERTForVisualReasoning"
            return "LXMERTForVisualQuestionAnswering"
        if any(key.startswith("cls.") for key in weights):
            return "LXMERTForPreTraining"
        return "LXMERTModel"

    def list_rules(self, class_name: str, keys: Collection[str]) -> Sequence[Rename]:
        heads = {"LXMERTForVisualReasoning": _REASONING, "LXMERTForVisualQuestionAnswering": _ANSWERS}
        return (heads.get(class_name, _PRETRAINING),)

    def explain(self, key: str, class_name: str) -> str | None:
        """The reason for constants, and for heads of pre-training in the file of a task."""
        if key.endswith("position_ids"):
            return "a constant: 0, 1, 2, ..."
        if class_name != "LXMERTForPreTraining" and key.startswith(("cls.", "obj_predict_head.", "answer_head.")):
            return "part of the pre-training heads, which the class of this checkpoint does not have"
        return None

    def finish(self, conversion: Conversion, weights: Mapping[str, Tensor]) -> None:
        check_same(conversion, "cls.predictions.decoder.weight", _TRUNK + "embeddings.word_embeddings.weight")

    def read_fields(self, conversion: Conversion, overrides: Mapping[str, Any]) -> ConfigFields:
        """Reads sizes from the shapes; the number of heads is that of public files, or of --config."""
        shape = conversion.shape
        names = conversion.weights
        read: dict[str, Any] = conversion.read_sizes(_SIZES)
        for field, layers in (("l_layers", "layer"), ("r_layers", "r_layers"), ("x_layers", "x_layers")):
            read[field] = conversion.count_layers(f"lxmert.encoder.{layers}.")
        if conversion.class_name == "LXMERTForPreTraining":
            overrides = {"qa_answers" if name == "answers" else name: value for name, value in overrides.items()}
            heads = {"visual_obj_loss": "obj", "visual_attr_loss": "attr", "visual_feat_loss": "feat"}
            decoder = "obj_predict_head.decoder_dict.{}.weight"
            read |= {field: decoder.format(name) in names for field, name in heads.items()}
            read["task_obj_predict"] = "obj_predict_head.transform.dense.weight" in names
            read["task_qa"] = "answer_head.logit_fc.3.weight" in names
            for field, name in (("num_object_labels", "obj"), ("num_attr_labels", "attr")):
                if decoder.format(name) in names:
                    read[field] = shape(decoder.format(name))[0]
            if read["task_qa"]:
                read["num_qa_labels"] = shape("answer_head.logit_fc.3.weight")[0]
        if conversion.class_name == "LXMERTForVisualQuestionAnswering" and {"answers", "id2label"}.isdisjoint(
            overrides
        ):
            read["num_labels"] = shape("answer_head.logit_fc.3.weight")[0]
        assumed = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "visual_loss": "released"}
        return settle_fields(read, assumed, overrides, LXMERTConfig, self.public)


LXMERT = LXMERTFamily()

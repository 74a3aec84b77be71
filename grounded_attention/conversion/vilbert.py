# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Converts checkpoints of the public ViLBERT code (the first one and 12-in-1); every key is recorded."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from grounded_attention.modeling.configuration_vilbert import ViLBertConfig
from grounded_attention.modeling.modeling_vilbert import ViLBertForMultiTask, ViLBertForPreTraining, ViLBertModel

from .errors import CheckpointError, OverrideError
from .fields import ConfigFields, settle_fields
from .keys import Conversion, Rename, rename_prefix
from .original_family import OriginalFamily, check_same

_TRUNK = "vilbert."
_REGION_DECODER = "cls.imagePredictions.decoder.weight"
_RELATIONSHIP = "cls.bi_seq_relationship."
_HEADS = "cls vil_logit vil_tri_prediction vision_logit linguisic_logit"
# Heads of two linear layers, with the numbers of their parts in the original names.
_TWO_LAYERS = ("vil_prediction", "vil_prediction_gqa", "vil_binary_prediction")
_PARTS = {"0": "dense", "2": "LayerNorm", "3": "classifier"}
_RULES = partial(
    rename_prefix,
    (
        ("bert.", _TRUNK),
        # The first public code has weight norm here, which `finish` resolves.
        *((f"vil_prediction.main.{number}.", f"vil_prediction.{part}.") for number, part in _PARTS.items()),
        *(
            (f"{head}.logit_fc.{number}.", f"{head}.{part}.")
            for head in _TWO_LAYERS
            for number, part in _PARTS.items()
        ),
        *((f"{name}.", f"{name}.") for name in _HEADS.split()),
    ),
)
# Field -> our name of the tensor that determines it, and the dimension.
_SIZES = {
    "vocab_size": ("vilbert.embeddings.word_embeddings.weight", 0),
    "hidden_size": ("vilbert.embeddings.word_embeddings.weight", 1),
    "v_hidden_size": ("vilbert.v_embeddings.image_embeddings.weight", 0),
    "v_feature_size": ("vilbert.v_embeddings.image_embeddings.weight", 1),
    "bi_hidden_size": ("vilbert.encoder.c_layer.0.biattention.query1.weight", 0),
    "intermediate_size": ("vilbert.encoder.layer.0.intermediate.dense.weight", 0),
    "v_intermediate_size": ("vilbert.encoder.v_layer.0.intermediate.dense.weight", 0),
    "max_position_embeddings": ("vilbert.embeddings.position_embeddings.weight", 0),
    "type_vocab_size": ("vilbert.embeddings.token_type_embeddings.weight", 0),
}
_TASK_TOKENS = "vilbert.embeddings.task_embeddings.weight"
# Fields of the public configuration files that the public code ignores, or that are options of its training.
_IGNORED = frozenset(
    "bi_intermediate_size bi_attention_type pooling_method v_initializer_range fast_mode in_batch_pairs visualization "
    "model".split()
)
_VISUAL_TARGETS = ("classes", "features", "nce")


class ViLBertFamily(OriginalFamily):
    """The converter for files of the public ViLBERT code."""

    title = "ViLBERT"
    expected = "a pre-training or task checkpoint of the public ViLBERT code (vilbert_beta or vilbert-multi-task)"
    config_class = ViLBertConfig
    model_classes = (ViLBertModel, ViLBertForMultiTask, ViLBertForPreTraining)
    base_prefix = _TRUNK
    public = (
        {
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "v_num_hidden_layers": 6,
            "num_attention_heads": 12,
            "v_num_attention_heads": 8,
            "bi_num_attention_heads": 8,
            "t_biattention_id": [6, 7, 8, 9, 10, 11],
            "v_biattention_id": [0, 1, 2, 3, 4, 5],
        },
    )

    def detect_class(self, weights: Mapping[str, Tensor], original_keys: Collection[str]) -> str:
        if any(key.startswith("vil_prediction.") for key in weights):
            return "ViLBertForMultiTask"
        if any(key.startswith("cls.") for key in weights):
            return "ViLBertForPreTraining"
        return "ViLBertModel"

    def list_rules(self, class_name: str, keys: Collection[str]) -> Sequence[Rename]:
        return (_RULES,)

    def explain(self, key: str, class_name: str) -> str | None:
        """The reason for constants and for layers that the public code never runs."""
        if ".biOutput.q_dense" in key:
            return "never used by the public code"
        if key.endswith("position_ids"):
            return "a constant: 0, 1, 2, ..."
        return None

    def finish(self, conversion: Conversion, weights: Mapping[str, Tensor]) -> None:
        """Orders the relationship scores as here, resolves weight norm, and checks that tied tensors are equal."""
        check_same(conversion, "cls.predictions.decoder.weight", _TRUNK + "embeddings.word_embeddings.weight")
        renamed = conversion.weights
        for name in ("weight", "bias"):
            # Class 0 is "belongs together" in the public code, and class 1 here.
            if _RELATIONSHIP + name in renamed:
                renamed[_RELATIONSHIP + name] = renamed[_RELATIONSHIP + name].flip(0)
        for name in [name for name in renamed if name.endswith(".weight_v")]:
            plain = name.removesuffix("_v")
            scale = renamed.pop(plain + "_g", None)
            if scale is None:
                raise CheckpointError(
                    f"the file has {conversion.original(name)}, but not its weight_g; it is damaged."
                )
            direction = renamed.pop(name)
            renamed[plain] = scale * direction / direction.norm()
            merged = {plain + "_g", name}
            for key, target in conversion.converted.items():
                if target in merged:
                    conversion.converted[key] = plain

    def read_fields(self, conversion: Conversion, overrides: Mapping[str, Any]) -> ConfigFields:
        """Reads sizes from the shapes; schedule and numbers of heads are those of public files, or of --config."""
        names = conversion.weights
        read: dict[str, Any] = conversion.read_sizes(_SIZES)
        read["num_hidden_layers"] = conversion.count_layers("vilbert.encoder.layer.")
        read["v_num_hidden_layers"] = conversion.count_layers("vilbert.encoder.v_layer.")
        read["task_specific_tokens"] = _TASK_TOKENS in names
        if read["task_specific_tokens"]:
            read["num_task_tokens"] = conversion.shape(_TASK_TOKENS)[0]
        if conversion.class_name != "ViLBertModel":
            read["relationship_head"] = _RELATIONSHIP + "weight" in names
        if conversion.class_name == "ViLBertForMultiTask":
            read |= self._read_answers(conversion, overrides)
        overrides = _adapt_given(overrides)
        assumed = {
            "hidden_act": "gelu",
            "v_hidden_act": "gelu",
            "fusion_method": "mul",
            "layer_norm_eps": 1e-12,
            "visual_target": "classes",
        }
        if _REGION_DECODER in names:
            rows = conversion.shape(_REGION_DECODER)[0]
            if overrides.get("visual_target", "classes") == "classes":
                read["v_target_size"] = rows
            elif rows != read["v_feature_size"]:
                raise OverrideError(
                    f"--config gives visual_target {overrides['visual_target']!r}, but the region head has {rows} "
                    f"rows and the features are {read['v_feature_size']} wide: it predicts classes."
                )
        fields = settle_fields(read, assumed, overrides, ViLBertConfig, self.public)
        calls = len(fields.values().get("t_biattention_id", ()))
        layers = conversion.count_layers(_TRUNK + "encoder.c_layer.")
        if calls != layers:
            raise CheckpointError(
                f"the file has {layers} co-attention layers, but t_biattention_id has {calls} entries: give --config "
                "the configuration file of the checkpoint."
            )
        return fields

    def _read_answers(self, conversion: Conversion, overrides: Mapping[str, Any]) -> dict[str, Any]:
        names = conversion.weights
        gelu = "vil_prediction.LayerNorm.weight" in names
        read: dict[str, Any] = {"answer_head": "gelu" if gelu else "relu", "num_gqa_labels": None}
        if "vil_prediction_gqa.classifier.weight" in names:
            read["num_gqa_labels"] = conversion.shape("vil_prediction_gqa.classifier.weight")[0]
        if {"answers", "id2label"}.isdisjoint(overrides):
            read["num_labels"] = conversion.shape("vil_prediction.classifier.weight")[0]
        return read


def _adapt_given(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a public configuration file with the names and values of ours."""
    kept = {name: value for name, value in overrides.items() if name not in _IGNORED}
    target = kept.get("visual_target")
    if isinstance(target, int) and 0 <= target < len(_VISUAL_TARGETS):
        kept["visual_target"] = _VISUAL_TARGETS[target]
    return kept


VILBERT = ViLBertFamily()

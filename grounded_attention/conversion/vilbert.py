# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Converts checkpoints of the public ViLBERT code (the first one and 12-in-1); every key is recorded."""

from grounded_attention.modeling.configuration_vilbert import ViLBertConfig
from grounded_attention.modeling.modeling_vilbert import ViLBertForMultiTask, ViLBertForPreTraining, ViLBertModel
from grounded_attention.utils.named_types import Columns, Fields

from .fields import CheckpointError, ConfigFields, OverrideError
from .keys import Conversion, Weights
from .original_family import CONSTANTS, OriginalFamily

_WORDS = "vilbert.embeddings.word_embeddings.weight"
_REGION_DECODER = "cls.imagePredictions.decoder.weight"
_RELATIONSHIP = "cls.bi_seq_relationship."
_GQA = "vil_prediction_gqa.classifier.weight"
# Heads with the same names here, and those of two linear layers, whose parts have numbers in the original names.
_SAME = "cls vil_logit vil_tri_prediction vision_logit linguisic_logit"
_NUMBERED = {"0": "dense", "2": "LayerNorm", "3": "classifier"}
_TASK_TOKENS = "vilbert.embeddings.task_embeddings.weight"
# Fields of the public configuration files that the public code ignores, or that are options of its training.
_IGNORED = frozenset(
    "bi_intermediate_size bi_attention_type pooling_method v_initializer_range fast_mode in_batch_pairs visualization "
    "model".split()
)
_VISUAL_TARGETS = ("classes", "features", "nce")


_GATE = "vilbert.encoder.v_layer.0.attention.self.dyLinear_q.weight"  # of dynamic attention


def _two_layers(original: str, head: str) -> list[tuple[str, str]]:
    return [(f"{original}.{number}.", f"{head}.{part}.") for number, part in _NUMBERED.items()]


class ViLBertFamily(OriginalFamily):
    """The converter for files of the public ViLBERT code."""

    title = "ViLBERT"
    expected = "a pre-training or task checkpoint of the public ViLBERT code (vilbert_beta or vilbert-multi-task)"
    config_class = ViLBertConfig
    model_classes = (ViLBertModel, ViLBertForMultiTask, ViLBertForPreTraining)
    classes = {"vil_prediction.": "ViLBertForMultiTask", "cls.": "ViLBertForPreTraining"}
    base_prefix = "vilbert."
    trunk = (
        ("bert.", "vilbert."),
        # The first public code has weight norm here, which `finish` resolves.
        *_two_layers("vil_prediction.main", "vil_prediction"),
        *_two_layers("vil_prediction.logit_fc", "vil_prediction"),
        *_two_layers("vil_prediction_gqa.logit_fc", "vil_prediction_gqa"),
        *_two_layers("vil_binary_prediction.logit_fc", "vil_binary_prediction"),
        *((f"{name}.", f"{name}.") for name in _SAME.split()),
    )
    ignored = {**CONSTANTS, r"\.biOutput\.q_dense": "never used by the public code"}
    flipped = _RELATIONSHIP
    tied = ("cls.predictions.decoder.weight", _WORDS)
    sizes = {
        "vocab_size": (_WORDS, 0),
        "hidden_size": (_WORDS, 1),
        "v_hidden_size": ("vilbert.v_embeddings.image_embeddings.weight", 0),
        "v_feature_size": ("vilbert.v_embeddings.image_embeddings.weight", 1),
        "bi_hidden_size": ("vilbert.encoder.c_layer.0.biattention.query1.weight", 0),
        "intermediate_size": ("vilbert.encoder.layer.0.intermediate.dense.weight", 0),
        "v_intermediate_size": ("vilbert.encoder.v_layer.0.intermediate.dense.weight", 0),
        "max_position_embeddings": ("vilbert.embeddings.position_embeddings.weight", 0),
        "type_vocab_size": ("vilbert.embeddings.token_type_embeddings.weight", 0),
    }
    layers = {"num_hidden_layers": "vilbert.encoder.layer.", "v_num_hidden_layers": "vilbert.encoder.v_layer."}
    answers = {"ViLBertForMultiTask": "vil_prediction.classifier.weight"}
    assumed = {
        "hidden_act": "gelu",
        "v_hidden_act": "gelu",
        "fusion_method": "mul",
        "with_coattention": True,
        "layer_norm_eps": 1e-12,
        "visual_target": "classes",
    }
    # Schedule and numbers of heads are those of public files, or of --config.
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

    def finish(self, conversion: Conversion, weights: Weights) -> None:
        """Also resolves weight norm."""
        super().finish(conversion, weights)
        renamed = conversion.weights
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

    def read_fields(self, conversion: Conversion, overrides: Columns) -> ConfigFields:
        """Also checks that the schedule has the co-attention layers of the file."""
        # Fields of a public configuration file with the names and values of ours.
        kept = {name: value for name, value in overrides.items() if name not in _IGNORED}
        target = kept.get("visual_target")
        if isinstance(target, int) and 0 <= target < len(_VISUAL_TARGETS):
            kept["visual_target"] = _VISUAL_TARGETS[target]
        fields = super().read_fields(conversion, kept)
        calls = len(fields.values().get("t_biattention_id", ()))
        layers = conversion.count_layers("vilbert.encoder.c_layer.")
        if calls != layers:
            raise CheckpointError(
                f"the file has {layers} co-attention layers, but t_biattention_id has {calls} entries: give --config "
                "the configuration file of the checkpoint."
            )
        return fields

    def read_more(self, conversion: Conversion, overrides: Columns, read: Columns) -> Columns:
        """Task tokens, and sizes of the heads."""
        names = conversion.weights
        fields: Fields = {"task_specific_tokens": _TASK_TOKENS in names, "dynamic_attention": _GATE in names}
        if _TASK_TOKENS in names:
            fields["num_task_tokens"] = conversion.shape(_TASK_TOKENS)[0]
        if conversion.class_name != "ViLBertModel":
            fields["relationship_head"] = _RELATIONSHIP + "weight" in names
        if conversion.class_name == "ViLBertForMultiTask":
            fields["answer_head"] = "gelu" if "vil_prediction.LayerNorm.weight" in names else "relu"
            fields["num_gqa_labels"] = conversion.shape(_GQA)[0] if _GQA in names else None
        if _REGION_DECODER in names:
            rows = conversion.shape(_REGION_DECODER)[0]
            if overrides.get("visual_target", "classes") == "classes":
                fields["v_target_size"] = rows
            elif rows != read["v_feature_size"]:
                raise OverrideError(
                    f"--config gives visual_target {overrides['visual_target']!r}, but the region head has {rows} "
                    f"rows and the features are {read['v_feature_size']} wide: it predicts classes."
                )
        return fields


VILBERT = ViLBertFamily()

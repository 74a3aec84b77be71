# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A toy family's configuration; `tests/families/test_toy_family.py` puts it into a copy of `modeling/`."""

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .attention_calls import AttentionCall, one_stream_calls
from .auto_classes import make_auto_map

AUTO_MAP = make_auto_map("toy", "ToyConfig", "ToyModel", "ToyForVGP")


@strict
class ToyConfig(PreTrainedConfig):
    model_type = "toy"

    vocab_size: int = 30522
    hidden_size: int = 16
    num_hidden_layers: int = 2
    num_attention_heads: int = 2
    intermediate_size: int = 16
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    max_position_embeddings: int = 128
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    region_feature_size: int = 2048
    classifier_dropout: float | int = 0.1
    identification_pooling: str = "cls"
    identification_hidden_size: int | None = None
    vgp_hidden_size: int | None = None
    num_identification_labels: int = 3
    num_vgp_labels: int = 5
    grounding_hidden_size: int | None = None
    grounding_head: bool = False
    box_layer: int | None = None
    is_decoder: bool = False
    add_cross_attention: bool = False

    def __post_init__(self, **kwargs):
        kwargs["auto_map"] = {**(kwargs.get("auto_map") or {}), **AUTO_MAP}
        super().__post_init__(**kwargs)

    @property
    def max_text_length(self) -> int:
        return self.max_position_embeddings

    @property
    def grounding_calls(self) -> tuple[AttentionCall, ...]:
        return one_stream_calls(self.num_hidden_layers, self.num_attention_heads)


ToyConfig.register_for_auto_class("AutoConfig")

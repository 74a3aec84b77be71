# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Initialises a model family from a BERT checkpoint, and checks the configuration fields that a caller may set."""

from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoConfig, BertForPreTraining, PreTrainedConfig

# The fields that the shapes of BERT's tensors fix.
_BERT_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings")

# What data parallelism, torch.compile, FSDP, activation checkpointing and Lightning add to the names of weights -> "".
_PARTS = "module|_forward_module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module"
_OF_TRAINING_LOOPS = {rf"^(({_PARTS}|model)\.)+": "", rf"(\.({_PARTS}))+\.": "."}


class BertStart:
    """Initialises a model from a BERT checkpoint."""

    config_class: Any
    config: Any
    base_model_prefix: str
    state_dict: Any
    tie_weights: Any
    _is_base_class: Any
    # The fields that the weights of a BERT checkpoint fix; a family may take only its first layers.
    _bert_sizes: tuple[str, ...] = _BERT_SIZES

    @classmethod
    def from_bert(cls, pretrained_model_name_or_path: str, **config_overrides: Any) -> Any:
        """
        Initialises a model from a BERT checkpoint: words, positions, token types, encoder, pooler, and the heads that
        BERT has too. The other weights are random.

        Args:
            pretrained_model_name_or_path (`str`): directory or Hub id of a BERT checkpoint.
            config_overrides: configuration fields that the BERT checkpoint does not fix.

        Returns:
            the model.

        Raises:
            ValueError: if the checkpoint is not of the BERT family or lacks weights of its encoder, or an override is
                no field of the configuration or is fixed by the BERT checkpoint.
        """
        name = pretrained_model_name_or_path
        fields = read_bert_config(name)
        if "num_hidden_layers" not in cls._bert_sizes:
            del fields["num_hidden_layers"]
        check_overrides(cls.config_class, config_overrides, fields, name)
        model = cls(cls.config_class(**{**fields, **config_overrides}))  # type: ignore[call-arg]
        model._copy_bert_weights(name)
        return model

    @torch.no_grad()
    def _copy_bert_weights(self, name: str, only: set[str] | None = None) -> set[str]:
        """Copies the weights of a BERT checkpoint; `only` limits the names in this model. Returns the names copied."""
        check_sizes(self.config, {field: read_bert_config(name)[field] for field in self._bert_sizes}, name)
        try:
            bert, info = cast(Any, BertForPreTraining.from_pretrained)(
                name, output_loading_info=True, key_mapping=_OF_TRAINING_LOOPS
            )
        except AttributeError as error:  # a dictionary in place of a weight
            raise ValueError(f"{name} has no state dict in its file of weights: save model.state_dict()") from error
        lost = sorted(key for key in info["missing_keys"] if key.startswith(("bert.embeddings.", "bert.encoder.")))
        if lost:
            names = ", ".join(sorted(info["unexpected_keys"])[:2]) or "no other names"
            raise ValueError(f"{name} has no {lost[0]} ({len(lost)} weights of BERT in all), but {names}")
        weights = self.state_dict()
        copied = set()
        wanted = set(weights) if only is None else only
        prefix = "" if self._is_base_class() else f"{self.base_model_prefix}."
        for key, value in bert.state_dict().items():
            target = self._rename_bert_weight(key, prefix)
            if key in info["missing_keys"] or target not in wanted:
                continue
            # "Belongs together" is class 0 in BERT, and class 1 here, as in VL-BERT's targets.
            if "seq_relationship" in key:
                value = value.flip(0)
            # A family may have more token types than BERT.
            weights[target][: value.shape[0]].copy_(value)
            copied.add(target)
        copied |= self._derive_from_bert(weights, prefix, wanted)
        self.tie_weights()
        return copied

    def _rename_bert_weight(self, name: str, prefix: str) -> str:
        """The name in this model of a weight of `BertForPreTraining`; `prefix` is the prefix of the base model. A
        model that pools in another way takes neither BERT's pooler nor its relationship head: "".
        """
        if not getattr(self.config, "pools_as_bert", True) and (".pooler." in name or "seq_relationship" in name):
            return ""
        if name.startswith("bert."):
            return prefix + name.removeprefix("bert.")
        return name

    def _derive_from_bert(self, weights: dict[str, Tensor], prefix: str, wanted: set[str]) -> set[str]:
        """Sets the `wanted` weights that start as copies of other BERT weights. Returns their names."""
        return set()


def read_bert_config(name: str) -> dict:
    """The configuration fields that a model takes over from a BERT checkpoint."""
    bert_config = AutoConfig.from_pretrained(name)
    if bert_config.model_type != "bert":
        raise ValueError(
            f"{name} is a checkpoint of the family '{bert_config.model_type}'; expected 'bert', for example "
            "google-bert/bert-base-uncased."
        )
    names = (
        "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act "
        "hidden_dropout_prob attention_probs_dropout_prob max_position_embeddings initializer_range layer_norm_eps "
        "pad_token_id"
    )
    return {name: getattr(bert_config, name) for name in names.split()}


def check_overrides(config_class: type[PreTrainedConfig], overrides: dict, bert_fields: dict, name: str) -> None:
    """Raises `ValueError` for overrides that are not fields, or contradict the weights of the BERT model `name`."""
    unknown = sorted(
        set(overrides) - {*config_class().to_dict(), *config_class.attribute_map, "answers", "num_labels"}
    )
    if unknown:
        raise ValueError(f"{config_class.__name__} has no field {unknown[0]}.")
    for field in set(_BERT_SIZES) & set(bert_fields):
        if overrides.get(field, bert_fields[field]) != bert_fields[field]:
            raise ValueError(
                f"{field}={overrides[field]} contradicts the weights of {name}, where it is {bert_fields[field]}; "
                "remove this override."
            )


def check_sizes(config: PreTrainedConfig, bert_fields: dict, name: str) -> None:
    """Raises `ValueError` if a model with `config` has other values of `bert_fields` than the BERT model `name`."""
    for field in bert_fields:
        own = getattr(config, field)
        if own != bert_fields[field]:
            raise ValueError(
                f"{field} is {bert_fields[field]} in the BERT model {name}, but {own} in this model; use a BERT "
                "model of the same size."
            )

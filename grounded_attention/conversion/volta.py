# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What the converters of VOLTA's checkpoints share; VOLTA is a public code with controlled versions of five models.

All of its models have one encoder of numbered sub-layers; the JSON configuration of a checkpoint says what each one
does. The map of keys follows from it, so a converter belongs to one configuration.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

import torch

from grounded_attention.utils.named_types import Columns

from .fields import CheckpointError, ConfigFields, OverrideError
from .file import VOLTA
from .keys import Conversion, Keys, Pairs, Rename, Weights, plain_key, rename_prefix
from .original_family import CONSTANTS, UNKNOWN, OriginalFamily
from .volta_schedule import STREAMS, Layers, Step, VoltaConfig

ENCODER = "bert.encoder.layer."
# Modules of a self-attention and of a feed-forward sub-layer -> those of a layer here, which has BERT's names.
SELF_ATTENTION = {
    **{f"attention_self.{{}}{part}": f"attention.self.{part}" for part in ("query", "key", "value")},
    **{f"attention_output.{{}}{part}": f"attention.output.{part}" for part in ("dense", "LayerNorm")},
}
FEED_FORWARD = {
    "intermediate.{}dense": "intermediate.dense",
    "output.{}dense": "output.dense",
    "output.{}LayerNorm": "output.LayerNorm",
}


class VoltaFamily(OriginalFamily):
    """What the converters of VOLTA's models share; before the family's own converter among the base classes."""

    title = VOLTA
    expected = "a checkpoint of VOLTA"
    heads = {}
    ignored = {
        r"^clfs_dict\.": "head of a task of VOLTA, of another form than here; its encoder is converted",
        **CONSTANTS,
    }
    family: ClassVar[str]
    fusion_methods: ClassVar[tuple[str, ...]] = ("mul", "sum", "text")

    def __init__(self, config: VoltaConfig):
        self.config = config
        if config["fusion_method"] not in self.fusion_methods:
            raise OverrideError(
                f"fusion_method is {config['fusion_method']!r}, expected {' or '.join(self.fusion_methods)}."
            )
        self.steps = {stream: config.units(stream, self.family, *self.list_layers()) for stream in STREAMS}
        self.pairs = dict(self.map_layers())

    @abstractmethod
    def list_layers(self) -> Layers:
        """The kinds of the steps of each layer that the family has."""

    @abstractmethod
    def map_layers(self) -> Pairs:
        """Pairs for the modules of the sub-layers, and those that depend on the configuration."""

    @abstractmethod
    def give_fields(self) -> Columns:
        """Our configuration fields that the file of --config gives."""

    def make_rename(self, class_name: str, keys: Keys) -> Rename:
        return partial(rename_prefix, (*self.pairs.items(), *self.trunk))

    def explain(self, key: str, class_name: str) -> str | None:
        """Also the reason for the second names of shared weights."""
        if self._first_name(key) is not None:
            return "second name of a tensor that text and regions share"
        return super().explain(key, class_name)

    def _first_name(self, key: str) -> str | None:
        """The other name of a tensor that both streams share, for its name with `v_`; `None` for other keys."""
        first = key.replace(".v_", ".", 1)
        number = key.removeprefix(ENCODER).partition(".")[0]
        is_shared = number.isdigit() and int(number) in self.config.lists["shared_sublayers"]
        is_second = key.startswith(ENCODER) and first != key and rename_prefix(self.pairs.items(), key) is None
        if is_shared and is_second and rename_prefix(self.pairs.items(), first) is not None:
            return first
        return None

    def finish(self, conversion: Conversion, weights: Weights) -> None:
        """Also checks unknown keys, and both names of shared tensors."""
        unknown = [
            key
            for key, reason in conversion.left_out.items()
            if reason == UNKNOWN and plain_key(key).startswith(("bert.", "cls."))
        ]
        if unknown:
            raise CheckpointError(
                f"the file has {unknown[0]}, which --config does not have ({len(unknown)} such keys in all; its "
                f"sub-layers are 0 to {self.config.count - 1}); give the configuration of this checkpoint."
            )
        for key, value in weights.items():
            first = self._first_name(key)
            if first is not None and first in weights and not torch.equal(weights[first], value):
                raise CheckpointError(
                    f"{conversion.keys[key]} differs from {conversion.keys[first]}; expected equal tensors, because "
                    "--config says that text and regions share them."
                )
        super().finish(conversion, weights)

    def read_fields(self, conversion: Conversion, overrides: Columns) -> ConfigFields:
        """The fields of the configuration, checked against the tensors; `overrides` are those of --config."""
        return super().read_fields(conversion, {**self.give_fields(), **self.config.others})

    def map_layer(self, steps: Sequence[Step], side: str, ours: str) -> Pairs:
        """Pairs for self-attention and feed-forward; `side` is "" for text and "v_" for regions."""
        for step, parts in zip(steps, (SELF_ATTENTION, FEED_FORWARD), strict=True):
            yield from self.map_parts(step, side, parts, ours)

    def map_parts(self, step: Step, side: str, parts: Mapping[str, str], ours: str = "") -> Pairs:
        """Pairs for a sub-layer: `parts` are modules of it, with a place for `side`, and ours. Checks its sizes."""
        if step.kind != "cross":  # ViLBERT's co-attention has sizes of its own
            ends = step.kind.endswith("feed-forward")
            for name in ("intermediate_size",) if ends else ("hidden_size", "num_attention_heads"):
                for prefix in ("", "v_") if step.kind.startswith("shared") else (side,):
                    self.config.check_size(step.number, prefix + name)
        for module, our_module in parts.items():
            yield f"{ENCODER}{step.number}.{module.format(side)}.", f"{ours}{our_module}."

    def check_equal_streams(self) -> None:
        """Checks that both streams have the same sizes."""
        names = "hidden_size num_attention_heads intermediate_size hidden_dropout_prob attention_probs_dropout_prob"
        for name in names.split():
            if self.config[name] != self.config[f"v_{name}"]:
                raise OverrideError(
                    f"v_{name} is {self.config[f'v_{name}']} and {name} is {self.config[name]}, expected equal sizes: "
                    f"{self.family} has one for both streams."
                )

    def text_fields(self) -> Columns:
        """The fields of all families."""
        names = "hidden_size num_attention_heads intermediate_size hidden_act hidden_dropout_prob pooler_size "
        names += "attention_probs_dropout_prob fusion_method"
        return {name: self.config[name] for name in names.split()}

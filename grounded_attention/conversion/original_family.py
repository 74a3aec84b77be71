# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Shared by the converters of all families: makes a model of original weights and records every key.

A family is a subclass of `OriginalFamily`, which defines its keys. All checks are in this file or in the files that it
imports: a file of another family, duplicate keys, unknown fields, gaps in the numbers of layers, contradictions with
--config, missing and unexpected tensors, shapes, NaN. Errors contain the keys of the file.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from grounded_attention.modeling.finite_numbers import is_finite
from grounded_attention.utils.named_types import Columns, Fields
from grounded_attention.utils.progress import with_progress

from .fields import CheckpointError, ConfigFields, OverrideError, make_config, name_some, settle_fields
from .file import check_family
from .keys import (
    Conversion,
    Keys,
    Pairs,
    Rename,
    Weights,
    Wrapper,
    plain_key,
    rename_prefix,
    strip_wrappers,
)

UNKNOWN = "unknown key, which the public code does not have"
CONSTANTS = {r"position_ids$": "a constant: 0, 1, 2, ..."}


class OriginalFamily:
    """The converter for the files of one original code.

    Attributes:
        title (`str`): name of the family, as in `SIGNATURES`.
        accepted (`tuple[str, ...]`): titles of other signatures whose files also contain it.
        expected (`str`): description of its files, for messages.
        config_class (`type[PreTrainedConfig]`): its configuration class.
        model_classes (`tuple[type[PreTrainedModel], ...]`): its model classes; the first is the base model.
        classes (`Mapping[str, str]`): begin of a key -> the class of its file; the first one that a file has counts.
        base_prefix (`str`): prefix of our names before the names of the base model.
        wrappers (`tuple[Wrapper, ...]`): wrappers of its training code, outermost first, beside those of `plain_key`.
        trunk (`Pairs`): begins of keys in every file, and ours; the rest of a key stays. The first match counts.
        heads (`Mapping[str, Pairs]`): class -> those of its heads.
        ignored (`Mapping[str, str]`): pattern of keys that are not converted -> reason.
        flipped (`str`): our name of a head whose class 0 is "belongs together" in the public code, and 1 here.
        tied (`tuple[str, str]`): our names of two tensors that the public code ties.
        sizes (`Mapping[str, tuple[str, int]]`): field -> our name of the tensor that has its size, and the dimension.
        layers (`Mapping[str, str]`): field -> our names of the layers that it counts, without the number.
        answers (`Mapping[str, str]`): class -> our name of the tensor with a row for each answer.
        assumed (`Mapping[str, Any]`): values of the public code that the weights do not determine.
        public (`tuple[Mapping[str, Any], ...]`): public configurations, see `settle_fields`.
        droppable (`Mapping[str, str]`): prefix of our names -> reason why a class may not have it.
    """

    title: ClassVar[str]
    accepted: ClassVar[tuple[str, ...]] = ()
    expected: ClassVar[str]
    config_class: ClassVar[type[PreTrainedConfig]]
    model_classes: ClassVar[tuple[type[PreTrainedModel], ...]]
    classes: ClassVar[Mapping[str, str]] = {}
    base_prefix: ClassVar[str] = ""
    wrappers: ClassVar[tuple[Wrapper, ...]] = ()
    trunk: ClassVar[Pairs] = ()
    heads: ClassVar[Mapping[str, Pairs]] = {}
    ignored: ClassVar[Mapping[str, str]] = CONSTANTS
    flipped: ClassVar[str] = ""
    tied: ClassVar[tuple[str, str]] = ("", "")
    sizes: ClassVar[Mapping[str, tuple[str, int]]] = {}
    layers: ClassVar[Mapping[str, str]] = {}
    answers: ClassVar[Mapping[str, str]] = {}
    assumed: ClassVar[Columns] = {}
    public: ClassVar[tuple[Columns, ...]]
    droppable: ClassVar[Mapping[str, str]] = {}

    def detect_class(self, weights: Weights, originals: Keys) -> str:
        """The name of the class for the weights, given with keys without wrappers, and with those of the file."""
        keys = [*weights, *map(plain_key, originals)]
        found = (name for begin, name in self.classes.items() if any(key.startswith(begin) for key in keys))
        return next(found, self.model_classes[0].__name__)

    def make_rename(self, class_name: str, keys: Keys) -> Rename:
        """The rule for the keys (without wrappers) of a class."""
        return partial(rename_prefix, (*self.trunk, *self.heads.get(class_name, ())))

    def read_fields(self, conversion: Conversion, overrides: Columns) -> ConfigFields:
        """The config fields: `settle_fields` on the fields that the weights with our names determine."""
        read: Fields = {field: conversion.shape(name)[axis] for field, (name, axis) in self.sizes.items()}
        read |= {field: conversion.count_layers(prefix) for field, prefix in self.layers.items()}
        classifier = self.answers.get(conversion.class_name)
        if classifier and {"answers", "id2label"}.isdisjoint(overrides):
            read["num_labels"] = conversion.shape(classifier)[0]
        read |= self.read_more(conversion, overrides, read)
        return settle_fields(read, self.assumed, overrides, self.config_class, self.public)

    def read_more(self, conversion: Conversion, overrides: Columns, read: Columns) -> Columns:
        """Further fields that the weights determine, beside those that are `read`."""
        return {}

    def explain(self, key: str, class_name: str) -> str | None:
        """The reason why a key without wrappers is skipped; `None` for a key that the rules may convert."""
        for pattern, reason in self.ignored.items():
            if re.search(pattern, key):
                return reason
        begins = {}
        for name, pairs in self.heads.items():
            begins[name] = tuple(begin for begin, _ in pairs)
        is_head = any(key.startswith(each) for each in begins.values())
        if is_head and not key.startswith(begins.get(class_name, ())):
            return "part of a pre-training or task head, which the class of this checkpoint does not have"
        return None

    def finish(self, conversion: Conversion, weights: Weights) -> None:
        """Checks duplicate tensors, and reorders others; `weights` have keys without wrappers."""
        for name in (f"{self.flipped}weight", f"{self.flipped}bias"):
            if name in conversion.weights:
                conversion.weights[name] = conversion.weights[name].flip(0)
        first, second = map(conversion.weights.get, self.tied)
        if first is not None and second is not None and not torch.equal(first, second):
            names = " differs from ".join(map(conversion.original, self.tied))
            raise CheckpointError(f"{names}; expected equal tensors, because the public code ties them.")

    def optional(self, conversion: Conversion) -> Mapping[str, str]:
        """Our names that may be missing in a complete file -> reason. Any other missing name is an error."""
        return {}

    def convert_state_dict(self, state_dict: Weights) -> Conversion:
        """Renames an original state dict; every key is converted, or skipped with a reason."""
        check_family(state_dict, self.title, (self.title, *self.accepted), self.expected)
        keys = strip_wrappers(self.wrappers, state_dict)
        bare = {key: state_dict[original] for key, original in keys.items()}
        conversion = Conversion(self.detect_class(bare, state_dict), keys)
        rename = self.make_rename(conversion.class_name, bare)
        for key, original in with_progress(keys.items(), "tensors", len(keys)):
            reason = self.explain(key, conversion.class_name)
            name = None if reason else rename(key)
            if name is None:
                conversion.left_out[original] = reason or UNKNOWN
                continue
            if name in conversion.weights:
                first = conversion.original(name)
                raise CheckpointError(f"{first} and {original} are the same tensor; expected it once.")
            conversion.converted[original] = name
            tensor = state_dict[original]
            if not tensor.is_floating_point():
                raise CheckpointError(f"{original} has dtype {tensor.dtype}, expected floating-point weights.")
            tensor = tensor.float()
            if not is_finite(tensor):
                bad = tensor.numel() - int(torch.isfinite(tensor).sum())
                raise CheckpointError(
                    f"{original} has {bad} NaN or infinite numbers, of {tensor.numel()}: the training failed, or the "
                    "file is damaged. Use an earlier checkpoint."
                )
            conversion.weights[name] = tensor
        self.finish(conversion, bare)
        return conversion

    def build_model(self, state_dict: Weights, overrides: Columns | None = None) -> tuple[PreTrainedModel, Conversion]:
        """Makes our model with original weights, others by seed 0, and a record of every tensor."""
        conversion = self.convert_state_dict(state_dict)
        conversion.fields = self.read_fields(conversion, overrides or {})
        model = self._make_model(conversion.class_name, make_config(self.config_class, conversion.fields))
        if type(model) is self.model_classes[0]:
            prefix = self.base_prefix
        else:
            prefix = ""
        self._fit(conversion, model, prefix)
        weights = {name.removeprefix(prefix): value for name, value in conversion.weights.items()}
        model.load_state_dict(weights, strict=False)
        model.tie_weights()
        return model, conversion

    def _make_model(self, class_name: str, config: PreTrainedConfig) -> PreTrainedModel:
        """A model with random weights from seed 0."""
        classes = {model_class.__name__: model_class for model_class in self.model_classes}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                return classes[class_name](config)
            except Exception as error:  # torch raises many types, for example for an unknown activation
                raise OverrideError(
                    f"cannot make a model of this configuration ({type(error).__name__}: {error})."
                ) from error

    def _fit(self, conversion: Conversion, model: PreTrainedModel, prefix: str) -> None:
        """Checks the weights against the model: shapes, unexpected weights, missing weights."""
        places = {prefix + name: value.shape for name, value in model.state_dict().items()}
        class_name = type(model).__name__
        optional = self.optional(conversion)
        self._drop(conversion, places, class_name)
        for key, name in conversion.converted.items():
            found = conversion.weights[name].shape
            if found != places[name]:
                raise CheckpointError(
                    f"{key} has the shape {tuple(found)}, but the configuration expects {tuple(places[name])}; the "
                    "file is damaged, of another kind, or --config contradicts it."
                )
        tied = set(getattr(model, "_tied_weights_keys", None) or ())
        absent = places.keys() - conversion.weights.keys() - tied
        conversion.initialised = {name: optional[name] for name in places if name in absent and name in optional}
        missing = [name for name in places if name in absent and name not in optional]
        if missing:
            raise CheckpointError(
                f"nothing in the file becomes {name_some(missing)}, which {class_name} needs ({len(missing)} in "
                "all); it is damaged, incomplete, or --config has a part that the file does not have."
            )

    def _drop(self, conversion: Conversion, places: Keys, class_name: str) -> None:
        """Moves droppable weights to `left_out`; raises an error for other weights that the model does not have."""
        superfluous = {key: name for key, name in conversion.converted.items() if name not in places}
        unexpected = [key for key, name in superfluous.items() if not name.startswith(tuple(self.droppable))]
        if unexpected:
            raise CheckpointError(
                f"the file has {name_some(unexpected)}, which {class_name} does not have in this configuration "
                f"({len(unexpected)} in all); without these weights the model would differ from the original."
            )
        for key, name in superfluous.items():
            del conversion.converted[key], conversion.weights[name]
            reasons = (reason for begin, reason in self.droppable.items() if name.startswith(begin))
            conversion.left_out[key] = next(reasons)

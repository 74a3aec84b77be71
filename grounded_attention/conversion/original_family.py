# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Shared by the converters of all families: makes a model of original weights and records every key.

A family is a subclass of `OriginalFamily`, which defines its keys. All checks are in this file or in the files that it
imports: a file of another family, duplicate keys, unknown fields, gaps in the numbers of layers, contradictions with
--config, missing and unexpected tensors, shapes, NaN. Errors contain the keys of the file.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from grounded_attention.modeling.finite_numbers import is_finite
from grounded_attention.utils.progress import with_progress

from .errors import CheckpointError, OverrideError, name_some
from .fields import ConfigFields, make_config
from .file import check_family
from .keys import Conversion, Rename, Wrapper, find_wrappers, strip_wrappers

UNKNOWN = "unknown key, which the public code does not have"


class OriginalFamily(ABC):
    """The converter for the files of one original code.

    Attributes:
        title (`str`): name of the family, as in `SIGNATURES`.
        accepted (`tuple[str, ...]`): titles of other signatures whose files also contain it.
        expected (`str`): description of its files, for messages.
        config_class (`type[PreTrainedConfig]`): its configuration class.
        model_classes (`tuple[type[PreTrainedModel], ...]`): its model classes; the first is the base model.
        base_prefix (`str`): prefix of our names before the names of the base model.
        wrappers (`tuple[Wrapper, ...]`): wrappers of its training code, outermost first, beside those of `plain_key`.
        public (`tuple[Mapping[str, Any], ...]`): public configurations, see `settle_fields`.
        droppable (`Mapping[str, str]`): prefix of our names -> reason why a class may not have it.
    """

    title: ClassVar[str]
    accepted: ClassVar[tuple[str, ...]] = ()
    expected: ClassVar[str]
    config_class: ClassVar[type[PreTrainedConfig]]
    model_classes: ClassVar[tuple[type[PreTrainedModel], ...]]
    base_prefix: ClassVar[str] = ""
    wrappers: ClassVar[tuple[Wrapper, ...]] = ()
    public: ClassVar[tuple[Mapping[str, Any], ...]]
    droppable: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def detect_class(self, weights: Mapping[str, Tensor], original_keys: Collection[str]) -> str:
        """The name of the class for the weights, given with keys without wrappers."""

    @abstractmethod
    def list_rules(self, class_name: str, keys: Collection[str]) -> Sequence[Rename]:
        """The rules for the keys (without wrappers) of a class; the first match applies."""

    @abstractmethod
    def read_fields(self, conversion: Conversion, overrides: Mapping[str, Any]) -> ConfigFields:
        """The config fields: `settle_fields` on the fields that the weights with our names determine."""

    def explain(self, key: str, class_name: str) -> str | None:
        """The reason why a key without wrappers is skipped; `None` for a key that the rules may convert."""
        return None

    @abstractmethod
    def finish(self, conversion: Conversion, weights: Mapping[str, Tensor]) -> None:
        """Checks duplicate tensors and reorders others; `weights` have keys without wrappers."""

    def optional(self, conversion: Conversion) -> Mapping[str, str]:
        """Our names that may be missing in a complete file -> reason. Any other missing name is an error."""
        return {}

    def convert_state_dict(self, state_dict: Mapping[str, Tensor]) -> Conversion:
        """Renames an original state dict; every key is converted, or skipped with a reason."""
        check_family(state_dict, self.title, (self.title, *self.accepted), self.expected)
        wrappers = find_wrappers(self.wrappers, state_dict)
        keys = strip_wrappers(wrappers, state_dict)
        bare = {key: state_dict[original] for key, original in keys.items()}
        class_name = self.detect_class(bare, state_dict)
        conversion = Conversion(class_name, keys)
        rules = self.list_rules(class_name, bare)
        for key, original in with_progress(keys.items(), "tensors", len(keys)):
            self._place(conversion, rules, key, original, state_dict[original])
        self.finish(conversion, bare)
        return conversion

    def _place(self, conversion: Conversion, rules: Sequence[Rename], key: str, original: str, tensor: Tensor) -> None:
        reason = self.explain(key, conversion.class_name)
        names = (name for rename in rules if (name := rename(key)) is not None)
        name = None if reason else next(names, None)
        if name is None:
            conversion.left_out[original] = reason or UNKNOWN
            return
        if name in conversion.weights:
            raise CheckpointError(f"{conversion.original(name)} and {original} are the same tensor; expected it once.")
        conversion.converted[original] = name
        conversion.weights[name] = check_finite(original, tensor)

    def build_model(
        self, state_dict: Mapping[str, Tensor], overrides: Mapping[str, Any] | None = None
    ) -> tuple[PreTrainedModel, Conversion]:
        """Makes our model with original weights, others by seed 0, and a record of every tensor."""
        conversion = self.convert_state_dict(state_dict)
        conversion.fields = self.read_fields(conversion, overrides or {})
        config = make_config(self.config_class, conversion.fields)
        model = self._make_model(conversion.class_name, config)
        prefix = self.base_prefix if type(model) is self.model_classes[0] else ""
        fit_to_model(conversion, model, prefix, self.droppable, self.optional(conversion))
        model.load_state_dict(
            {name.removeprefix(prefix): value for name, value in conversion.weights.items()}, strict=False
        )
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


def check_finite(key: str, tensor: Tensor) -> Tensor:
    """Converts a tensor to float32."""
    if not tensor.is_floating_point():
        raise CheckpointError(f"{key} has dtype {tensor.dtype}, expected floating-point weights.")
    tensor = tensor.float()
    if not is_finite(tensor):
        bad = tensor.numel() - int(torch.isfinite(tensor).sum())
        raise CheckpointError(
            f"{key} has {bad} NaN or infinite numbers, of {tensor.numel()}: the training failed, or the file is "
            "damaged. Use an earlier checkpoint."
        )
    return tensor


def check_same(conversion: Conversion, first: str, second: str) -> None:
    """Checks that two tensors that the public code ties are equal."""
    tensors = [conversion.weights.get(name) for name in (first, second)]
    if tensors[0] is not None and tensors[1] is not None and not torch.equal(tensors[0], tensors[1]):
        raise CheckpointError(
            f"{conversion.original(first)} differs from {conversion.original(second)}; expected equal tensors, "
            "because the public code ties them."
        )


def fit_to_model(
    conversion: Conversion,
    model: PreTrainedModel,
    prefix: str,
    droppable: Mapping[str, str],
    optional: Mapping[str, str],
) -> None:
    """Checks the weights against the model: shapes, unexpected weights, missing weights."""
    places = {prefix + name: value.shape for name, value in model.state_dict().items()}
    _drop(conversion, places, type(model).__name__, droppable)
    for key, name in conversion.converted.items():
        if conversion.weights[name].shape != places[name]:
            raise CheckpointError(
                f"{key} has the shape {tuple(conversion.weights[name].shape)}, but the configuration expects "
                f"{tuple(places[name])}; the file is damaged, of another kind, or --config contradicts it."
            )
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    absent = [name for name in places if name not in conversion.weights and name not in tied]
    conversion.initialised = {name: optional[name] for name in absent if name in optional}
    missing = [name for name in absent if name not in optional]
    if missing:
        raise CheckpointError(
            f"nothing in the file becomes {name_some(missing)}, which {type(model).__name__} needs ({len(missing)} in "
            "all); it is damaged, incomplete, or --config has a part that the file does not have."
        )


def _drop(conversion: Conversion, places: Collection[str], class_name: str, droppable: Mapping[str, str]) -> None:
    """Moves droppable weights to `left_out`; raises an error for other weights that the model does not have."""
    superfluous = [key for key, name in conversion.converted.items() if name not in places]
    unexpected = [key for key in superfluous if not conversion.converted[key].startswith(tuple(droppable))]
    if unexpected:
        raise CheckpointError(
            f"the file has {name_some(unexpected)}, which {class_name} does not have in this configuration "
            f"({len(unexpected)} in all); without these weights the model would differ from the original."
        )
    for key in superfluous:
        name = conversion.converted.pop(key)
        del conversion.weights[name]
        conversion.left_out[key] = next(reason for begin, reason in droppable.items() if name.startswith(begin))

# Copyright 2026 The grounded-attention authors. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What the converters of all families share: from original weights to a model, with an account of every key.

A family is a subclass of `OriginalFamily`, which says what its keys mean. All checks are here or in the files that
this one imports: another family's file, keys under two names, unknown fields, gaps in the numbering of layers,
contradictions with --config, missing and superfluous tensors, shapes, NaN. Errors name the keys as they stand in the
file.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from .errors import CheckpointError, OverrideError, name_some
from .fields import BY_OPTIMIZER, COUNTED, ConfigFields, make_config
from .file import OriginalFile, count_parameters
from .keys import DATA_PARALLEL, Conversion, Rules, Wrapper, find_wrappers, strip_wrappers
from .signatures import check_family

UNKNOWN = "unknown key: not one of the public code's"


class OriginalFamily(ABC):
    """
    What a converter has to know about the files of an original code.

    Attributes:
        title (`str`): the family's name, that of its line in `SIGNATURES`.
        accepted (`tuple[str, ...]`): titles of other signatures whose files hold it too.
        expected (`str`): which files it converts, for messages.
        config_class (`type[PreTrainedConfig]`): its configuration.
        model_classes (`tuple[type[PreTrainedModel], ...]`): its classes; the first is the base model.
        base_prefix (`str`): what our names have in front of the base model's own.
        wrappers (`tuple[Wrapper, ...]`): what training code puts in front of keys, the outermost first.
        public (`tuple[Mapping[str, Any], ...]`): public configurations, see `settle_fields`.
        droppable (`Mapping[str, str]`): prefix of our names -> why a class may have no place for it.
    """

    title: ClassVar[str]
    accepted: ClassVar[tuple[str, ...]] = ()
    expected: ClassVar[str]
    config_class: ClassVar[type[PreTrainedConfig]]
    model_classes: ClassVar[tuple[type[PreTrainedModel], ...]]
    base_prefix: ClassVar[str] = ""
    wrappers: ClassVar[tuple[Wrapper, ...]] = (DATA_PARALLEL,)
    public: ClassVar[tuple[Mapping[str, Any], ...]]
    droppable: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def detect_class(self, weights: Mapping[str, torch.Tensor], original_keys: Collection[str]) -> str:
        """The name of the class that the weights, under keys without wrappers, belong to."""

    @abstractmethod
    def list_rules(self, class_name: str, keys: Collection[str]) -> Sequence[Rules]:
        """The rules for the keys (without wrappers) of a class; the first that has a name decides."""

    @abstractmethod
    def read_fields(self, conversion: Conversion, given: Mapping[str, Any]) -> ConfigFields:
        """The configuration's fields: `settle_fields` on what the weights under our names tell."""

    def explain(self, key: str, class_name: str) -> str | None:
        """Why a key without wrappers is left out; `None` for one that is converted where the rules have a name."""
        return None

    @abstractmethod
    def finish(self, conversion: Conversion, weights: Mapping[str, torch.Tensor]) -> None:
        """Checks what is there twice and moves what has another order here; `weights` are under bare keys."""

    def optional(self, conversion: Conversion) -> Mapping[str, str]:
        """Our names that a complete file may lack -> why. What it lacks beside these is an error."""
        return {}

    def convert_state_dict(self, state_dict: Mapping[str, torch.Tensor]) -> Conversion:
        """
        Renames an original state dict; every key ends up converted or left out with a reason.

        Args:
            state_dict (`Mapping[str, torch.Tensor]`): the original weights, with or without wrappers.

        Raises:
            CheckpointError: for another family, a key under two names, an option that is not supported, a tensor that
                is there twice with two contents, or one with numbers that are not finite.
        """
        check_family(state_dict, self.title, (self.title, *self.accepted), self.expected)
        wrappers = find_wrappers(self.wrappers, state_dict)
        keys = strip_wrappers(wrappers, state_dict)
        bare = {key: state_dict[original] for key, original in keys.items()}
        class_name = self.detect_class(bare, state_dict)
        conversion = Conversion(class_name, self.list_rules(class_name, bare), wrappers)
        for key, original in keys.items():
            self._place(conversion, key, original, state_dict[original])
        self.finish(conversion, bare)
        return conversion

    def _place(self, conversion: Conversion, key: str, original: str, tensor: torch.Tensor) -> None:
        reason = self.explain(key, conversion.class_name)
        names = (name for rules in conversion.rules if (name := rules.rename(key)) is not None)
        name = None if reason else next(names, None)
        if name is None:
            conversion.left_out[original] = reason or UNKNOWN
            return
        if name in conversion.weights:
            raise CheckpointError(f"{conversion.original(name)} and {original} are one tensor; expected it only once.")
        conversion.converted[original] = name
        conversion.weights[name] = check_finite(original, tensor)

    def build_model(
        self, state_dict: Mapping[str, torch.Tensor], given: Mapping[str, Any] | None = None
    ) -> tuple[PreTrainedModel, Conversion]:
        """
        Our model with the weights of an original checkpoint, and the account of every tensor.

        What a complete file may lack is initialised with seed 0; the caller's random state is left alone.

        Args:
            state_dict (`Mapping[str, torch.Tensor]`): the original weights, with or without wrappers.
            given (`Mapping[str, Any]`, *optional*): fields of the configuration that shapes do not tell.

        Raises:
            CheckpointError: the weights are of another family, incomplete, or of other sizes than the configuration's.
            OverrideError: a given field is unknown or contradicts the file.
        """
        conversion = self.convert_state_dict(state_dict)
        conversion.fields = self.read_fields(conversion, given or {})
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
        """A model with random weights of seed 0."""
        classes = {model_class.__name__: model_class for model_class in self.model_classes}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                return classes[class_name](config)
            except Exception as error:  # torch raises many types for fields such as an unknown activation
                raise OverrideError(f"the configuration makes no model ({type(error).__name__}: {error}).") from error

    def convert_file(
        self, file: OriginalFile, given: Mapping[str, Any] | None = None
    ) -> tuple[PreTrainedModel, Conversion]:
        """`build_model` of a file, whose optimizer, where it has one, tells how many parameters there must be."""
        model, conversion = self.build_model(file.state_dict, given)
        held = count_parameters(file.state_dict)
        if file.trained is not None and file.trained > held:
            raise CheckpointError(
                f"the file's optimizer holds {file.trained} parameters, its state_dict only {held}: "
                f"{file.trained - held} tensors are missing; it is damaged or incomplete."
            )
        if file.trained == held:
            notes = conversion.fields.notes
            notes |= {name: BY_OPTIMIZER for name, note in notes.items() if note == COUNTED}
        return model, conversion


def check_finite(key: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float32; `CheckpointError` for NaN, infinite, or other than floating-point numbers."""
    if not tensor.is_floating_point():
        raise CheckpointError(f"{key} holds {tensor.dtype}, expected floating-point weights.")
    tensor = tensor.float()
    bad = tensor.numel() - int(torch.isfinite(tensor).sum())
    if bad:
        raise CheckpointError(
            f"{key} holds {bad} numbers that are NaN or infinite, of {tensor.numel()}: the training that wrote the "
            "file failed, or it is damaged. Take an earlier checkpoint."
        )
    return tensor


def check_same(conversion: Conversion, first: str, second: str) -> None:
    """Raises `CheckpointError` when two names of ours that the public code ties hold two things."""
    tensors = [conversion.weights.get(name) for name in (first, second)]
    if tensors[0] is not None and tensors[1] is not None and not torch.equal(tensors[0], tensors[1]):
        raise CheckpointError(
            f"{conversion.original(first)} differs from {conversion.original(second)}; expected one tensor under two "
            "names, as the public code ties them."
        )


def fit_to_model(
    conversion: Conversion,
    model: PreTrainedModel,
    prefix: str,
    droppable: Mapping[str, str],
    optional: Mapping[str, str],
) -> None:
    """
    Holds the weights against the model: shapes, what has no place, what is missing.

    Args:
        conversion ([`Conversion`]): the renamed weights; changed in place.
        model (`PreTrainedModel`): the model they are for.
        prefix (`str`): what our names have in front of the model's own.
        droppable (`Mapping[str, str]`): prefix of our names -> why the model may have no place for it.
        optional (`Mapping[str, str]`): our name -> why the file may lack it.

    Raises:
        CheckpointError: a tensor of another shape, one that has no place, or one that is missing.
    """
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
    missing = [conversion.original(name) for name in absent if name not in optional]
    if missing:
        raise CheckpointError(
            f"the file has no {name_some(missing)}, which {type(model).__name__} needs ({len(missing)} in all); it is "
            "damaged, incomplete, or --config asks for what it does not have."
        )


def _drop(conversion: Conversion, places: Collection[str], class_name: str, droppable: Mapping[str, str]) -> None:
    """Moves weights without a place to what is left out; refuses those that a class may not lack."""
    superfluous = [key for key, name in conversion.converted.items() if name not in places]
    unexpected = [key for key in superfluous if not conversion.converted[key].startswith(tuple(droppable))]
    if unexpected:
        raise CheckpointError(
            f"the file has {name_some(unexpected)}, for which {class_name} has no place in this configuration "
            f"({len(unexpected)} in all); without them the model would be another one."
        )
    for key in superfluous:
        name = conversion.converted.pop(key)
        del conversion.weights[name]
        conversion.left_out[key] = next(reason for begin, reason in droppable.items() if name.startswith(begin))

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
"""Original keys and our names: rules between them, what training code wraps keys in, the account of every key."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from .errors import CheckpointError, name_some
from .fields import ConfigFields


class Rules(Protocol):
    """How keys without wrappers and our names belong together."""

    def rename(self, key: str) -> str | None:
        """Our name of a key, or `None`."""

    def restore(self, name: str) -> str | None:
        """The key of a name of ours, or of the beginning of one; `None` without one."""


@dataclass(frozen=True)
class PrefixRules:
    """
    Keys that differ from our names in what they begin with.

    Args:
        pairs (`tuple[tuple[str, str], ...]`): original prefix, ours; the first that fits decides.
    """

    pairs: tuple[tuple[str, str], ...]

    def rename(self, key: str) -> str | None:
        """Our name of a key, or `None`."""
        for original, ours in self.pairs:
            if key.startswith(original):
                return ours + key.removeprefix(original)
        return None

    def restore(self, name: str) -> str | None:
        """The key of a name of ours, or of the beginning of one; `None` without one."""
        keys = (original + name.removeprefix(ours) for original, ours in self.pairs if name.startswith(ours))
        return next((key for key in keys if self.rename(key) == name), None)


class Wrapper(NamedTuple):
    """What training code puts in front of keys: `written` stands there for `bare` where a key begins with `mark`."""

    written: str
    bare: str
    mark: str

    def strip(self, key: str) -> str:
        """The key without the wrapper."""
        return self.bare + key.removeprefix(self.written) if key.startswith(self.written) else key

    def wrap(self, key: str) -> str:
        """The key as the file has it."""
        return self.written + key.removeprefix(self.bare) if key.startswith(self.bare) else key


DATA_PARALLEL = Wrapper("module.", "", "module.")


@dataclass
class Conversion:
    """
    Renamed weights and the account of every key.

    Args:
        class_name (`str`): the class of ours that the checkpoint belongs to.
        rules (`Sequence[Rules]`): how its keys become our names.
        wrappers (`Sequence[Wrapper]`): what stands in front of its keys.
        weights (`dict[str, torch.Tensor]`): float32 tensors under our names.
        converted (`dict[str, str]`): original key -> our name.
        left_out (`dict[str, str]`): original key -> reason.
        initialised (`dict[str, str]`): our name that the checkpoint does not hold -> why it may lack it.
        fields ([`ConfigFields`]): the configuration's fields and where they come from.
    """

    class_name: str
    rules: Sequence[Rules] = ()
    wrappers: Sequence[Wrapper] = ()
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    converted: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    initialised: dict[str, str] = field(default_factory=dict)
    fields: ConfigFields = field(default_factory=ConfigFields)

    def original(self, name: str) -> str:
        """The file's key for a name of ours, or for the beginning of one, also where the file lacks it."""
        found = next((key for key, ours in self.converted.items() if ours == name), None)
        if found is not None:
            return found
        key = next((key for rules in self.rules if (key := rules.restore(name)) is not None), None)
        return name if key is None else self.wrap(key)

    def wrap(self, key: str) -> str:
        """A key without wrappers as the file has it."""
        for wrapper in reversed(self.wrappers):
            key = wrapper.wrap(key)
        return key

    def shape(self, name: str, dimensions: int = 2) -> torch.Size:
        """The shape of the tensor under our name; `CheckpointError` where it is absent or of other dimensions."""
        if name not in self.weights:
            raise CheckpointError(
                f"the file has no {self.original(name)}, without which sizes are unknown; it is damaged or incomplete."
            )
        shape = self.weights[name].shape
        if len(shape) != dimensions:
            raise CheckpointError(
                f"{self.original(name)} has the shape {tuple(shape)}, expected {dimensions} dimensions; it is damaged."
            )
        return shape

    def count_layers(self, prefix: str) -> int:
        """How many layers are numbered after `prefix` in our names; `CheckpointError` for none, or for a gap."""
        pattern = re.compile(re.escape(prefix) + r"(\d+)\.")
        numbers = {int(match.group(1)) for match in map(pattern.match, self.weights) if match}
        absent = sorted(set(range(max(numbers, default=0) + 1)) - numbers)
        if absent:
            keys = name_some(self.original(f"{prefix}{number}.") + "*" for number in absent)
            others = f", but a layer {max(numbers)}" if numbers else ""
            raise CheckpointError(f"the file has no {keys}{others}; it is damaged or incomplete.")
        return len(numbers)


def find_wrappers(wrappers: Sequence[Wrapper], keys: Collection[str]) -> list[Wrapper]:
    """Those wrappers that the keys have, the outermost first."""
    found = []
    for wrapper in wrappers:
        if any(key.startswith(wrapper.mark) for key in keys):
            found.append(wrapper)
            keys = [wrapper.strip(key) for key in keys]
    return found


def strip_wrappers(wrappers: Sequence[Wrapper], keys: Collection[str]) -> dict[str, str]:
    """Key without wrappers -> key of the file; `CheckpointError` where two become one."""
    bare: dict[str, str] = {}
    for original in keys:
        key = original
        for wrapper in wrappers:
            key = wrapper.strip(key)
        if key in bare:
            raise CheckpointError(f"{bare[key]} and {original} are one key; expected every tensor under one name.")
        bare[key] = original
    return bare

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Original keys and our names: the rules between them, wrappers of training code, and the record of every key."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from .errors import CheckpointError, name_some
from .fields import ConfigFields


class Rules(Protocol):
    """Maps between keys without wrappers and our names."""

    def rename(self, key: str) -> str | None:
        """Our name for a key, or `None`."""

    def restore(self, name: str) -> str | None:
        """The original key for our name or the beginning of one; `None` if there is none."""


@dataclass(frozen=True)
class PrefixRules:
    """Rules for keys that differ from our names only in the prefix."""

    pairs: tuple[tuple[str, str], ...]

    def rename(self, key: str) -> str | None:
        for original, ours in self.pairs:
            if key.startswith(original):
                return ours + key.removeprefix(original)
        return None

    def restore(self, name: str) -> str | None:
        keys = (original + name.removeprefix(ours) for original, ours in self.pairs if name.startswith(ours))
        return next((key for key in keys if self.rename(key) == name), None)


class Wrapper(NamedTuple):
    """A prefix that training code adds to keys."""

    written: str
    bare: str
    mark: str

    def strip(self, key: str) -> str:
        """The key without the wrapper."""
        return self.bare + key.removeprefix(self.written) if key.startswith(self.written) else key

    def wrap(self, key: str) -> str:
        """The key with the wrapper, as in the file."""
        return self.written + key.removeprefix(self.bare) if key.startswith(self.bare) else key


# What data parallelism, torch.compile, FSDP and activation checkpointing add to names; Lightning adds "model.".
_PARTS = r"module|_forward_module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module"
_FIRST = re.compile(rf"(?:(?:{_PARTS}|model)\.)+")
_INSIDE = re.compile(rf"(?<=\.)(?:{_PARTS})\.")
_OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}  # of layer norms


def plain_key(key: str) -> str:
    """A key without what training loops add to it, and with the usual names of the weights of a layer norm."""
    first = _FIRST.match(key)
    key = _INSIDE.sub("", key[first.end() :] if first else key)
    return next((key.removesuffix(old) + new for old, new in _OLD_NAMES.items() if key.endswith(old)), key)


@dataclass
class Conversion:
    """Renamed weights and the record of every key."""

    class_name: str
    rules: Sequence[Rules] = ()
    wrappers: Sequence[Wrapper] = ()
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    converted: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    initialised: dict[str, str] = field(default_factory=dict)
    fields: ConfigFields = field(default_factory=ConfigFields)

    def original(self, name: str) -> str:
        """The key of the file for our name or the beginning of one, even if the file does not have it."""
        original = next((key for key, ours in self.converted.items() if ours == name), None)
        if original is not None:
            return original
        key = next((key for rules in self.rules if (key := rules.restore(name)) is not None), None)
        return name if key is None else self.wrap(key)

    def wrap(self, key: str) -> str:
        """Adds the wrappers of the file to a key."""
        for wrapper in reversed(self.wrappers):
            key = wrapper.wrap(key)
        return key

    def shape(self, name: str, dimensions: int = 2) -> torch.Size:
        """The shape of the tensor with our name."""
        if name not in self.weights:
            raise CheckpointError(
                f"the file has no {self.original(name)}, which determines sizes; it is damaged or incomplete."
            )
        shape = self.weights[name].shape
        if len(shape) != dimensions:
            raise CheckpointError(
                f"{self.original(name)} has the shape {tuple(shape)}, expected {dimensions} dimensions; it is damaged."
            )
        return shape

    def count_layers(self, prefix: str) -> int:
        """The number of layers with our names `prefix` + number."""
        pattern = re.compile(re.escape(prefix) + r"(\d+)\.")
        numbers = {int(match.group(1)) for match in map(pattern.match, self.weights) if match}
        absent = sorted(set(range(max(numbers, default=0) + 1)) - numbers)
        if absent:
            keys = name_some(self.original(f"{prefix}{number}.") + "*" for number in absent)
            others = f", but a layer {max(numbers)}" if numbers else ""
            raise CheckpointError(f"the file has no {keys}{others}; it is damaged or incomplete.")
        return len(numbers)


def find_wrappers(wrappers: Sequence[Wrapper], keys: Collection[str]) -> list[Wrapper]:
    """The wrappers that the keys have, outermost first: those of training loops, and of `wrappers`."""
    firsts = {match[0] for key in keys if (match := _FIRST.match(key))}
    around = [Wrapper(first, "", first) for first in sorted(firsts)[:1]]
    keys = [plain_key(key) for key in keys]
    for wrapper in wrappers:
        if any(key.startswith(wrapper.mark) for key in keys):
            around.append(wrapper)
            keys = [wrapper.strip(key) for key in keys]
    return around


def strip_wrappers(wrappers: Sequence[Wrapper], keys: Collection[str]) -> dict[str, str]:
    """Removes wrappers from keys."""
    bare: dict[str, str] = {}
    for original in keys:
        key = plain_key(original)
        for wrapper in wrappers:
            key = wrapper.strip(key)
        if key in bare:
            raise CheckpointError(f"{bare[key]} and {original} are the same key; expected every tensor once.")
        bare[key] = original
    return bare

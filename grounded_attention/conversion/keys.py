# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Original keys and our names: the rules between them, wrappers of training code, and the record of every key."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from .fields import CheckpointError, ConfigFields, name_some

Keys = Collection[str]
Weights = Mapping[str, Tensor]
Pairs = Iterable[tuple[str, str]]  # What a key begins with, or its module, in the file and here
# Our name for a key without wrappers, or `None`.
Rename = Callable[[str], str | None]


def rename_prefix(pairs: Pairs, key: str) -> str | None:
    """Our name for a key that differs only in the prefix; the first pair that fits applies."""
    return next((ours + key.removeprefix(original) for original, ours in pairs if key.startswith(original)), None)


class Wrapper(NamedTuple):
    """A prefix that training code adds to keys."""

    written: str
    bare: str
    mark: str

    def strip(self, key: str) -> str:
        """The key without the wrapper."""
        if key.startswith(self.written):
            return self.bare + key.removeprefix(self.written)
        return key


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
    keys: Mapping[str, str] = field(default_factory=dict)  # key without wrappers -> that of the file
    weights: dict[str, Tensor] = field(default_factory=dict)
    converted: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    initialised: dict[str, str] = field(default_factory=dict)
    fields: ConfigFields = field(default_factory=ConfigFields)

    def original(self, name: str) -> str:
        """The key of the file that became our name; our name if there is none."""
        return next((key for key, ours in self.converted.items() if ours == name), name)

    def shape(self, name: str, dimensions: int = 2) -> torch.Size:
        """The shape of the tensor with our name."""
        if name not in self.weights:
            raise CheckpointError(
                f"nothing in the file becomes {name}, which determines sizes; it is damaged or incomplete."
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
            names = name_some(f"{prefix}{number}.*" for number in absent)
            others = f", but a layer {max(numbers)} is there" if numbers else ""
            raise CheckpointError(f"nothing in the file becomes {names}{others}; it is damaged or incomplete.")
        return len(numbers)


def strip_wrappers(wrappers: Sequence[Wrapper], originals: Keys) -> dict[str, str]:
    """Key without what training loops add, and without the wrappers that the file has, outermost first -> its key in
    the file."""
    plain = {original: plain_key(original) for original in originals}
    for wrapper in wrappers:
        if any(key.startswith(wrapper.mark) for key in plain.values()):
            plain = {original: wrapper.strip(key) for original, key in plain.items()}
    keys: dict[str, str] = {}
    for original, key in plain.items():
        if key in keys:
            raise CheckpointError(f"{keys[key]} and {original} are the same key; expected every tensor once.")
        keys[key] = original
    return keys

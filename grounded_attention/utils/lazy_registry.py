# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A registry whose names are known at once and whose entries are imported when they are first read."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TypeVar

T = TypeVar("T")


class LazyRegistry(Mapping[str, T]):
    """A mapping from names to objects of modules. Listing the names imports nothing, so that `--help` stays fast."""

    def __init__(self, package: str, places: Mapping[str, str]):
        self._package = package
        self._places = dict(places)

    def __getitem__(self, name: str) -> T:
        module, _, attribute = self._places[name].partition(":")
        loaded: T = getattr(import_module(f"{self._package}.{module}"), attribute)
        return loaded

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

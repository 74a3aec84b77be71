# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The progress bar of all long work, tqdm's."""

from collections.abc import Iterable, Iterator
from typing import TypeVar, cast

from tqdm import tqdm

from .quiet import is_quiet

T = TypeVar("T")


def with_progress(items: Iterable[T], name: str, total: int | None = None, quiet: bool = False) -> Iterator[T]:
    """The items one by one, under a bar that goes when they end; the `total` of a stream may be unknown."""
    bar = tqdm(items, desc=name, total=total, disable=quiet or is_quiet(), leave=False, dynamic_ncols=True)
    return cast(Iterator[T], iter(bar))

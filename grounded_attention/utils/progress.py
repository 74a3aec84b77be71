# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The progress bar of all long work, tqdm's."""

import os
from collections.abc import Iterable, Iterator
from typing import TypeVar, cast

from tqdm import tqdm

T = TypeVar("T")


def is_quiet() -> bool:
    """Whether `--quiet` or `TQDM_DISABLE=1` hides progress, which a bar that says `disable=False` would not ask."""
    return os.environ.get("TQDM_DISABLE", "") not in ("", "0")


def with_progress(items: Iterable[T], name: str, total: int | None = None, quiet: bool = False) -> Iterator[T]:
    """The items one by one, under a bar that goes when they end; the `total` of a stream may be unknown."""
    bar = tqdm(items, desc=name, total=total, disable=quiet or is_quiet(), leave=False, dynamic_ncols=True)
    return cast(Iterator[T], iter(bar))

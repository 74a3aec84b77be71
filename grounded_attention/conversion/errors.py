# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Errors of the converters, and a helper that lists keys in messages."""

from collections.abc import Iterable

_MOST_NAMES = 3


class CheckpointError(ValueError):
    """A file that cannot be converted; the message contains the file or key, what was found and what was expected."""


class OverrideError(CheckpointError):
    """A wrong field in --config, or a field of --config that contradicts the file."""


def name_some(names: Iterable[str]) -> str:
    """The first three names and the number of the others, for example `a, b, c and 5 more`."""
    names = list(names)
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")

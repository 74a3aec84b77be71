# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Types of options that are numbers: a value out of range is refused before anything is read."""

import argparse

from grounded_attention.utils.bounded_files import MAX_COUNT, MAX_PROCESSES, MAX_SEED


def _read(text: str, lowest: int, highest: int) -> int:
    try:
        value = int(text)
    except ValueError:  # also for more than 4300 digits
        value = lowest - 1
    if not lowest <= value <= highest:
        raise argparse.ArgumentTypeError(f"expected a whole number from {lowest} to {highest}, found {text!r:.60}")
    return value


def positive(text: str) -> int:
    """A count or a size of at least 1."""
    return _read(text, 1, MAX_COUNT)


def not_negative(text: str) -> int:
    """A count that may be 0."""
    return _read(text, 0, MAX_COUNT)


def share(text: str) -> float:
    """A number from 0 to 1, for example an overlap."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:  # also for NaN
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, found {text!r:.60}")
    return value


def seed_number(text: str) -> int:
    """A seed."""
    return _read(text, 0, MAX_SEED)


def processes(text: str) -> int:
    """A number of processes or threads."""
    return _read(text, 1, MAX_PROCESSES)


def port_number(text: str) -> int:
    """A port."""
    return _read(text, 1, 65535)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Types of arguments that several commands have: a number out of range is refused before anything is read."""

import argparse
from collections.abc import Callable
from typing import Annotated

from grounded_attention.utils.bounded_files import MAX_COUNT, MAX_PROCESSES, MAX_SEED


def whole(lowest: int, highest: int) -> Callable[[str], int]:
    """A function that reads a whole number in a range."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:  # also for more than 4300 digits
            value = lowest - 1
        if not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(f"expected a whole number from {lowest} to {highest}, found {text!r:.60}")
        return value

    return read


def share(text: str) -> float:
    """Reads a number from 0 to 1, for example an overlap."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:  # also for NaN
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, found {text!r:.60}")
    return value


positive = whole(1, MAX_COUNT)
not_negative = whole(0, MAX_COUNT)
seed_number = whole(0, MAX_SEED)
processes = whole(1, MAX_PROCESSES)

Positive = Annotated[int, positive]
Count = Annotated[int, not_negative]
Seed = Annotated[int, seed_number]
Processes = Annotated[int, processes]
Share = Annotated[float, share]

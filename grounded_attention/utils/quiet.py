# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Whether progress is shown: on a terminal, unless `--quiet` or the environment (`TQDM_DISABLE=1`) hides it."""

import os
import sys

NO_BARS = "TQDM_DISABLE"  # tqdm reads it too, for bars that say nothing about it
PRINTED = "10"  # seconds between updates in a pipe or a log file


def calm_bars() -> None:
    """Keeps the bars of tqdm, of any library, from filling a pipe or a log file; before it is imported."""
    if not sys.stderr.isatty():
        for name in ("DELAY", "MININTERVAL", "MAXINTERVAL"):
            os.environ.setdefault(f"TQDM_{name}", PRINTED)


def is_quiet() -> bool:
    """Whether nothing shall show progress."""
    return os.environ.get(NO_BARS, "") not in ("", "0")

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Whether progress is shown: on a terminal, unless `--quiet` or the environment (`TQDM_DISABLE=1`) hides it."""

import os

NO_BARS = "TQDM_DISABLE"  # tqdm reads it too, for bars that say nothing about it


def is_quiet() -> bool:
    """Whether nothing shall show progress."""
    return os.environ.get(NO_BARS, "") not in ("", "0")

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The modules that `grounded-attention ...` runs. Only commands and `main.py` import from this folder."""

import os
import sys

# Waiting OpenMP threads sleep instead of spinning. Spinning threads make a two-thread run many times slower when
# another process uses a core. torch reads the variable when it is imported, and this file runs before the imports of
# any command.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# The file of a command does nothing when it is run, which nobody would see.
_run = next((name for mark, name in zip(sys.orig_argv, sys.orig_argv[1:], strict=False) if mark == "-m"), "")
if _run.startswith(f"{__name__}.") and _run != f"{__name__}.main":
    sys.exit(f"error: {_run} is no program: run python -m grounded_attention COMMAND, with torchrun too")

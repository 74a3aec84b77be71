# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The modules that `grounded-attention ...` runs. Only commands and `main.py` import from this folder."""

import os

# Waiting OpenMP threads sleep instead of spinning. Spinning threads make a two-thread run many times slower when
# another process uses a core. torch reads the variable when it is imported, and this file runs before the imports of
# any command.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

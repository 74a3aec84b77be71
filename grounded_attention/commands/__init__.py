# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What `grounded-attention ...` runs. Nothing but a command and `main.py` imports from here."""

import os

# A thread that waits sleeps, and leaves its core to others; OpenMP's threads would spin there otherwise, and two of
# them beside a busy neighbour take many times as long (benchmarks/waiting_threads.py). It stands here because torch
# reads it when it is imported, and this file runs before any command's imports.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

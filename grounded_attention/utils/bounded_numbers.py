# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Bounds of numbers that users give; a larger one is a typing error, which would fill the machine."""

MAX_SEED = 2**32 - 1  # NumPy's
MAX_COUNT = 2**31 - 1  # of rows, images, steps
MAX_PROCESSES = 256  # each begins at once, and has its own memory

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Words and defaults that several files of one command share; `--help` needs them."""

# heads
VALIDATION = "validation"
TEST = "test"
# The splits that heads are chosen and reported on.
USUAL_SPLITS = ("train", "validation")
REGIONS = "regions"  # default folder of the region table inside --data-dir
HEADS_LIMIT = 1000  # Localization Heads chooses on this many examples.

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Analysis of attention: where it looks, and whether the answer depends on it."""

MAPS = ("raw_last", "raw_mean", "rollout", "relevancy", "contribution")
# Steps in which regions are removed.
STEPS = 10

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The embedded data: scenes that are drawn, described, and written in the file formats of the real data sets."""

MIN_IMAGES = 5
# The name of their detector and features.
SOURCE = "scenes"

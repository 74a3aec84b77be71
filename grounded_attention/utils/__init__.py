# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Helpers for every package: boxes, atomic file writes, paths of the package."""

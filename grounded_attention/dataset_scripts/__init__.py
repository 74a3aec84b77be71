# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Readers of the original downloads, written as importable `datasets` builders, and the region tables."""

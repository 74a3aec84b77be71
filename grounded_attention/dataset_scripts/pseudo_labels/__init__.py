# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pseudo-labels of captions: phrases with the boxes and scores that a grounder gave them; Parquet files; the Hub."""

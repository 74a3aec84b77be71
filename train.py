# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Trains what a recipe describes: `accelerate launch train.py RECIPE`. The same as `grounded-attention train`."""

import sys

from grounded_attention.commands.main import calm_bars
from grounded_attention.commands.train import main

if __name__ == "__main__":
    calm_bars()
    sys.exit(main())

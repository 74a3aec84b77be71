# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Trains what a recipe describes: `accelerate launch train.py RECIPE`. The same as `grounded-attention train`."""

import sys

from grounded_attention.commands.train import main
from grounded_attention.utils.quiet import calm_bars

if __name__ == "__main__":
    calm_bars()
    sys.exit(main())

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Where attention looks, for every model: read, score, choose, ablate, draw and box the heads."""

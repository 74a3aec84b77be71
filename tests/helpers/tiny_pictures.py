# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pictures with random pixels."""

import numpy as np
from PIL import Image


def picture(width, height, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Copies half-precision features to float32 arrays of a batch."""

import warnings

import numpy as np
import torch


def copy_as_float32(target: np.ndarray, source: np.ndarray) -> None:
    """Copies `source` to `target`; torch converts half precision dozens of times faster than NumPy."""
    if source.dtype != np.float16:
        target[:] = source
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a read-only source, which is not written to
        half = torch.from_numpy(source)
    torch.from_numpy(target).copy_(half)

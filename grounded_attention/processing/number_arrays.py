# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Converts users' numbers to NumPy arrays; an error names the argument."""

import warnings
from typing import Any

import numpy as np
import torch

Arrays = dict[str, np.ndarray]  # the keys of a batch


def to_array(value: Any, name: str, kinds: str = "iuf") -> np.ndarray:
    """Converts an array, a torch tensor (any device, also bfloat16) or nested lists to a NumPy array."""
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            if "bfloat16" in str(value.dtype):
                value = value.float()
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name}: {value!r:.60} is not an array; expected numbers, in rows of equal length."
        ) from error
    if array.size and array.dtype.kind not in kinds:
        raise ValueError(f"{name}: values of type {array.dtype}, such as {array.flat[0]!r:.40}; expected numbers.")
    return array


def copy_as_float32(target: np.ndarray, source: np.ndarray) -> None:
    """Copies `source` to `target`; torch converts half precision dozens of times faster than NumPy."""
    if source.dtype != np.float16:
        target[:] = source
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a read-only source, which is not written to
        half = torch.from_numpy(source)
    torch.from_numpy(target).copy_(half)

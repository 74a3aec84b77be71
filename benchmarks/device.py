# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The clock of a device, and how many operations per second it can do."""

import re
import time

import torch

# Operations per second of dense matrix products in bfloat16, in units of 1e12, from the data sheets of the makers. The
# first pattern that occurs in the name of the card counts, so variants come before the plain name.
DATA_SHEETS = (
    (r"laptop|max-q|mig|4090 d", None),  # slower than the card whose name they bear
    (r"h100 pcie", 756),
    (r"h[12]00 nvl", 835),
    (r"h[12]00", 989),
    (r"a100", 312),
    (r"l40s", 362),
    (r"l4", 121),
    (r"rtx 4090", 165),
)


def clock(device: str) -> float:
    """Returns seconds: of the process on a CPU, which other processes change little; on a GPU, of finished work."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def data_sheet_peak(card: str) -> float | None:
    """Returns the operations per second of a card by its name, in bfloat16; `None` for a card that is not known."""
    for pattern, peak in DATA_SHEETS:
        if re.search(rf"\b(?:{pattern})\b", card.lower()):
            return None if peak is None else peak * 1e12
    return None


def matrix_peak(device: str, dtype: str, size: int = 8192) -> float:
    """Returns the operations per second of a square matrix product, the best of ten."""
    left, right = (torch.randn(size, size, device=device, dtype=getattr(torch, dtype)) for _ in range(2))
    best = float("inf")
    for _ in range(10):
        begin = clock(device)
        left @ right
        best = min(best, clock(device) - begin)
    return 2 * size**3 / best

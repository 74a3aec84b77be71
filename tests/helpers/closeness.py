# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tensors, and mappings of tensors, that are equal or differ only in how a machine adds up float32."""

from functools import partial

import torch
from torch.testing import assert_close

assert_same = partial(assert_close, rtol=0, atol=0)
assert_close = partial(assert_close, rtol=1e-5, atol=1e-5)


def below(tensors, start):
    """The tensors whose names begin with `start`, by what follows it."""
    return {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}


def parity_cases(shared, family):
    """The recorded cases of the public code of a family, by name."""
    file = torch.load(shared / "parity" / f"{family}.pt", weights_only=True)
    return {case["name"]: case for case in file["cases"]}

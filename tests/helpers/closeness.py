# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tensors, and mappings of tensors, that are equal or differ only in how a machine adds up float32."""

from functools import partial

from torch.testing import assert_close

assert_same = partial(assert_close, rtol=0, atol=0)
assert_close = partial(assert_close, rtol=1e-5, atol=1e-5)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Half precision becomes float32 as with NumPy."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from grounded_attention.processing.number_arrays import copy_as_float32


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("steps", [(1, 1), (2, 1), (1, 3)])
def test_every_half_precision_number_is_converted_exactly(read_only, steps):
    every = np.arange(65536, dtype=np.uint16).view(np.float16).reshape(256, 256)[:: steps[0], :: steps[1]]
    every.flags.writeable = not read_only
    target = np.full((258, *every.shape[1:]), 7, dtype=np.float32)[: len(every)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy_as_float32(target, every)
    assert_array_equal(target, every.astype(np.float32))


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
def test_other_numbers_are_copied(kind):
    source = np.arange(6).reshape(2, 3).astype(kind)
    target = np.zeros((2, 3), dtype=np.float32)
    copy_as_float32(target, source)
    assert_array_equal(target, [[0, 1, 2], [3, 4, 5]])

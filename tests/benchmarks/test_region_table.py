# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Both formats of the benchmark give the same data."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from benchmarks import region_table as benchmark


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(benchmark, "REGIONS", (2, 5))
    monkeypatch.setattr(benchmark, "FEATURE_SIZE", 6)


def test_both_formats_hold_the_same_data(small, tmp_path):
    expected = list(benchmark.make_images(4))
    for write in benchmark.FORMATS.values():
        read = write(tmp_path, 4)
        for number in (2, 0, 3, 1):
            for found, array in zip(read(number), expected[number], strict=True):
                assert_array_equal(np.asarray(found, np.float32), array)
        boxes, features = benchmark.make_batch(read, [3, 1])
        most = max(len(expected[3][0]), len(expected[1][0]))
        assert boxes.shape == (2, most, 4)
        assert features.shape == (2, most, 6)
        assert boxes.dtype == features.dtype == np.float32
        assert_array_equal(features[1, : len(expected[1][1])], expected[1][1])
        assert not features[1, len(expected[1][1]) :].any()

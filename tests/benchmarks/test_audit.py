# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Both implementations in the benchmark give the same answers, and only the plain one makes attention maps."""

from types import SimpleNamespace

import pytest

from benchmarks import audit as benchmark
from tests.helpers.supervision_models import forbid_maps

OPTIONS = SimpleNamespace(quick=True, batch=2, rounds=1)
REGIONS = 9
LENGTH = benchmark.WORDS + 2 + REGIONS + 1 + 1  # [CLS], [SEP], the whole image, END


def test_both_ways_answer_alike():
    counted = {way: benchmark.Audit(way, REGIONS, OPTIONS).step() for way in benchmark.WAYS}
    found = benchmark.count_differences(counted["audit"], counted["plain"])
    assert found["answers apart"] == [0] and found["share apart"][0] < 1e-5
    assert len({number for layer in counted["plain"]["text_to_region"]["correct"] for number in layer}) > 1
    counted["audit"]["text_to_region"]["correct"][0][0] += 1
    assert benchmark.count_differences(counted["audit"], counted["plain"])["answers apart"] == [1]


def test_only_the_plain_way_makes_maps():
    audited, plain = (benchmark.Audit(way, REGIONS, OPTIONS) for way in benchmark.WAYS)
    with forbid_maps(2, 12, LENGTH):
        audited.step()
        with pytest.raises(AssertionError, match="makes a tensor"):
            plain.step()

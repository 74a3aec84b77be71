# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The benchmark runs on a tiny model, and its ratios are what they are called."""

from argparse import Namespace

from benchmarks.attention_supervision import MODES, measure_memory, measure_times, ratios

QUICK = Namespace(quick=True, device="cpu", dtype="float32", rounds=1)


def test_every_mode_is_measured():
    times = measure_times(40, QUICK)
    assert list(times) == list(MODES) and all(len(rounds) == 1 and rounds[0] > 0 for rounds in times.values())
    assert measure_memory("direct", 40, QUICK) > 0


def test_ratios():
    times = {"none": [1.0, 2.0, 4.0], "direct": [2.0, 6.0, 4.0], "semi_direct": [3.0] * 3, "eager maps": [4.0] * 3}
    memory = {"none": 1.0, "direct": 2.0, "semi_direct": 3.0, "eager maps": 4.0}
    assert ratios(times, memory)["direct"] == {"time/none": 2.0, "time/eager": 1.0, "mem/none": 2.0, "mem/eager": 0.5}

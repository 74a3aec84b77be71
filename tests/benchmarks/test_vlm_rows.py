# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The rows of the benchmark are those of eager maps, only eager makes maps, and ratios are what they are called."""

from argparse import Namespace

import pytest

from benchmarks import vlm_rows as benchmark
from tests.helpers.supervision_models import forbid_maps

QUICK = Namespace(quick=True, device="cpu", dtype="float32", rounds=1, layers=2)


def test_rows_are_those_of_the_maps():
    assert benchmark.difference(40, QUICK) < 1e-5


def test_only_eager_makes_maps():
    loads = {mode: benchmark.Workload(mode, 40, QUICK) for mode in benchmark.MODES}
    with forbid_maps(1, 8, 40 + benchmark.TEXT):
        for mode in ("plain", "rows"):
            loads[mode].step()
        with pytest.raises(AssertionError, match="makes a tensor"):
            loads["maps"].step()


def test_every_phrase_has_image_tokens():
    batch = benchmark._make_batch(40, "cpu")
    assert batch["phrase_mask"].sum(-1).tolist() == [[benchmark.WORDS] * benchmark.PHRASES]
    assert batch["phrase_regions"].any(-1).all()


def test_every_mode_is_measured():
    times = benchmark.measure_times(40, QUICK)
    assert list(times) == list(benchmark.MODES) and all(
        len(rounds) == 1 and rounds[0] > 0 for rounds in times.values()
    )
    assert benchmark.measure_memory("rows", 40, QUICK) > 0


def test_ratios():
    times = {"plain": [1.0, 2.0, 4.0], "rows": [2.0, 6.0, 4.0], "maps": [4.0] * 3}
    times |= {"train": [1.0] * 3, "supervised": [1.0, 3.0, 2.0]}
    memory = {"plain": 1.0, "rows": 2.0, "maps": 8.0, "train": 3.0, "supervised": 6.0}
    assert benchmark.ratios(times, memory) == {
        "time rows/plain": (2.0, 1.0, 3.0),
        "time rows/maps": (1.0, 0.5, 1.5),
        "mem rows/maps": (0.25, 0.25, 0.25),
        "time supervised/train": (2.0, 1.0, 3.0),
        "mem supervised/train": (2.0, 2.0, 2.0),
    }

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Threads of commands sleep while they wait for each other, unless the user wants otherwise."""

import os
import subprocess
import sys

import pytest

from benchmarks import waiting_threads as benchmark
from tests.helpers.commands import ROOT


@pytest.mark.parametrize("given, found", [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "active"}, "ACTIVE")])
def test_openmp_is_told_before_it_starts(given, found):
    """OpenMP says itself what it has read."""
    environment = {name: value for name, value in os.environ.items() if name not in benchmark.NAMES}
    environment |= {"OMP_DISPLAY_ENV": "TRUE", "PYTHONPATH": str(ROOT), **given}
    command = [sys.executable, "-c", "import grounded_attention.commands.command_line, torch"]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    if "OMP_WAIT_POLICY" not in printed:
        pytest.skip("this OpenMP does not say what it has read")
    assert f"OMP_WAIT_POLICY = '{found}'" in printed


def test_both_ways_take_every_turn():
    trainers = {"spinning": lambda steps: 6.0 * steps, "passive": lambda steps: 2.0 * steps}
    times = benchmark.measure(trainers, 0, steps=2, rounds=3)
    assert times == {place: {"spinning": [12.0] * 3, "passive": [4.0] * 3} for place in ("alone", "beside")}


def test_ratios():
    alone = {"spinning": [1.0, 1.0, 3.0], "passive": [1.0, 2.0, 2.0]}
    beside = {"spinning": [8.0, 6.0, 9.0], "passive": [2.0, 2.0, 2.0]}
    found = benchmark.ratios({"alone": alone, "beside": beside})
    assert found["spinning / passive, alone"] == [1.0, 0.5, 1.5]
    assert found["spinning / passive, beside"] == [4.0, 3.0, 4.5]
    assert found["beside / alone, passive"] == [2.0, 1.0, 1.0]


def test_a_trainer_answers_with_seconds():
    with benchmark.start_trainer({}, threads=1) as train:
        assert train(1) > 0

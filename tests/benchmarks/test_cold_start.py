# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""CPU seconds of other processes, and what the ratios of a first look are made of."""

import subprocess
import sys

import pytest

from benchmarks import cold_start as benchmark

BUSY = """
import sys, time
while time.process_time() < 0.5:
    pass
print(time.process_time())
"""


def test_seconds_are_those_of_the_process_itself():
    own = float(subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, check=True).stdout)
    assert benchmark.seconds_of([sys.executable, "-c", BUSY]) == pytest.approx(own, abs=0.3)
    with pytest.raises(subprocess.CalledProcessError):
        benchmark.seconds_of([sys.executable, "-c", "raise SystemExit(2)"])


def test_ratios_with_and_without_the_imports():
    times = {"imports": [2.0, 3.0, 2.0], "answer": [4.0, 4.0, 6.0], "look": [5.0, 6.0, 6.0]}
    found = benchmark.ratios(times)
    assert found["whole, look / answer"] == [1.25, 1.5, 1.0]
    assert found["above the imports"] == [(6 - 2) / (4 - 2)]


def test_commands_ask_the_same_of_the_same_model():
    ways = benchmark.commands("model", "picture.png", "lens.html")
    for way in ("answer", "look"):
        assert {"model", "picture.png", benchmark.QUESTION} <= {*ways[way]}

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Turns, ratios, memory and processes of benchmarks; those of the smaller benchmarks run once."""

import json
import os
import time

import pytest

from benchmarks import measuring
from tests.helpers.project_files import ROOT
from tests.helpers.warm_python import run_python


def test_ways_take_turns():
    calls = []
    times = measuring.take_turns({name: lambda name=name: calls.append(name) for name in "ab"}, 2)
    assert calls == ["b", "a", "a", "b"]
    assert {name: len(taken) for name, taken in times.items()} == {"a": 2, "b": 2}


def test_ratios():
    assert measuring.quotients([1.0, 6.0], [2.0, 2.0]) == [0.5, 3.0]
    assert measuring.spread([3.0, 0.5, 1.0]) == "1.00 (0.50 to 3.00)"


def test_each_call_has_a_process_of_its_own_and_its_errors_come_back():
    assert len({os.getpid(), measuring.run_apart(os.getpid)}) == 2
    with pytest.raises(ZeroDivisionError):
        measuring.run_apart(divmod, 7, 0)


def test_memory_is_the_peak_beyond_what_the_process_has():
    """In a process of its own: that of the tests may have memory that it used before."""
    code = "from benchmarks.measuring import peak_memory\nprint(peak_memory(lambda: b'1' * (64 << 20)))"
    done = run_python(code, cwd=ROOT, env=os.environ)
    assert 60 << 20 < float(done.stdout) < 80 << 20


def test_time_and_memory_of_pairs_are_compared(monkeypatch):
    monkeypatch.setattr(measuring, "run_apart", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(measuring, "measure_memory", lambda make, way, *_: {"a": 3.0, "b": 2.0}[way])
    monkeypatch.setattr(measuring, "measure_times", lambda *_: {"a": [1.0, 9.0], "b": [4.0, 3.0]})
    found = measuring.compare(measuring.Workload, ("a", "b"), [("a", "b")], 7, None)
    assert found == {"time, a / b": [0.25, 3.0], "memory, a / b": [1.5]}
    assert json.loads(measuring.report({"size 7": found}, True)) == {"size 7": found}
    assert [line.split()[-1] for line in measuring.report({"size 7": found}, False).splitlines()] == ["3.00)", "1.50"]


def test_a_process_that_takes_too_long_is_ended():
    with pytest.raises(TimeoutError):
        measuring.run_within(1, time.sleep, 600)
    assert measuring.run_within(60, divmod, 7, 2) == (3, 1)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        measuring.run_within(60, divmod, 7, 0)


def test_what_is_left_is_shared_by_weight():
    budget = measuring.Budget(100, 4)
    assert budget.take(1) == pytest.approx(25, abs=1)
    assert budget.take(3) == pytest.approx(100, abs=1)  # nothing was used, and nothing else is to do
    assert len(measuring.take_turns({"way": list}, 50, seconds=0)["way"]) == 1  # and then no other round

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The benchmark of `look` reads what eager generation reports, and prints ratios."""

import json
from types import SimpleNamespace

import torch

from benchmarks import look as benchmark

OPTIONS = SimpleNamespace(quick=True, rounds=1)


def test_both_ways_report_the_same_rows():
    side = 6
    read = benchmark.Workload("look", side, OPTIONS).step()
    maps = benchmark.Workload("eager maps", side, OPTIONS).step().attentions
    for layer, rows in read.items():
        later = torch.stack([step[layer][0, :, -1, : side * side] for step in maps[1:]], 1)
        torch.testing.assert_close(rows[:, benchmark.WORDS : -1], later, atol=2e-6, rtol=0)


def test_ratios_are_printed(monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "run_apart", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(benchmark, "measure_memory", lambda way, *_: {"answer": 2.0, "look": 3.0}.get(way, 12.0))
    assert benchmark.main(["--quick", "--rounds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["64"]["mem/eager"] == [0.25]
    assert found["64"]["mem/answer"] == [1.5]

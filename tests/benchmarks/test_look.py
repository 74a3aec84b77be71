# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The benchmark of `look` reads what eager generation reports."""

from types import SimpleNamespace

import torch
from torch.testing import assert_close

from benchmarks import look as benchmark

OPTIONS = SimpleNamespace(quick=True, rounds=1)


def test_both_ways_report_the_same_rows():
    tokens = 36
    _, read = benchmark.Answer("look", tokens, OPTIONS).step()
    maps = benchmark.Answer("eager maps", tokens, OPTIONS).step().attentions
    for layer, rows in read.items():
        later = torch.stack([step[layer][0, :, -1, :tokens] for step in maps[1:]], 1)
        assert_close(rows[:, benchmark.WORDS : -1], later, atol=2e-6, rtol=0)

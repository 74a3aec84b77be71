# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The benchmark of exported models compares ways that answer alike."""

import json

import numpy as np
import pytest

from benchmarks import export as benchmark


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A small model, its ways to compute, and the sizes of its files."""
    options = benchmark._parser().parse_args(["--quick"])
    model = benchmark.make_base(options)
    return model, *benchmark.make_ways(model, tmp_path_factory.mktemp("exported"))


def test_the_ways_answer_alike_and_int8_is_smaller(made):
    model, ways, sizes = made
    batch = benchmark.make_batch(3, model.config)
    exact, onnx, small = (ways[name](batch)["logits"] for name in (benchmark.PYTORCH, benchmark.ONNX, benchmark.INT8))
    np.testing.assert_allclose(onnx, exact, atol=1e-4)
    assert 0 < np.abs(small - exact).max() < 0.05
    assert sizes[benchmark.INT8] < 0.6 * sizes[benchmark.ONNX]


def test_it_prints_ratios(made, capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "make_ways", lambda model, folder: made[1:])
    assert benchmark.main(["--quick", "--rounds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found[f"base width, {benchmark.PYTORCH}"] == {"size": [1], "speed, batch 1": [1], "speed, batch 8": [1]}

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Every way of the benchmark has the same loss, and its ratios are what they are called."""

import json

import pytest

from benchmarks import two_streams as benchmark

QUICK = ["--quick", "--examples", "12", "--batch", "4", "--rounds", "2"]


@pytest.fixture
def workload():
    return benchmark.Workload(benchmark.build_parser().parse_args(QUICK))


def test_all_ways_have_the_same_loss(workload):
    assert workload.difference() < 1e-5
    batch = workload.batches[0]
    losses = {}
    for way in benchmark.WAYS:
        workload._prepare(way)
        losses[way] = float(workload.loss(way, batch).detach())
    assert losses["padded"] == pytest.approx(losses["transformers"], rel=1e-5)
    assert losses["supervised"] > losses["unpadded"] + 0.1  # the loss of attention is added


def test_padding_is_there_to_be_skipped(workload):
    masks = [batch["region_attention_mask"] for batch in workload.batches]
    assert all(0.3 < float(mask.float().mean()) < 0.95 for mask in masks)


def test_ratios_are_what_they_are_called(monkeypatch, capsys):
    seconds = {"transformers": 6.0, "padded": 3.0, "unpadded": 2.0, "supervised": 2.5}
    monkeypatch.setattr(benchmark.Workload, "epoch", lambda self, way, steps=None: seconds[way])
    assert benchmark.main([*QUICK, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["speed_of_padded_over_transformers"] == [2.0] * 3
    assert found["speed_of_unpadded_over_transformers"] == [3.0] * 3
    assert found["speed_of_unpadded_over_padded"] == [1.5] * 3
    assert found["time_of_supervised_over_unpadded"] == [1.25] * 3

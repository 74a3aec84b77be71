# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Beside transformers' LXMERT and VisualBERT every way has the same loss, and the ratios are what they are called."""

import json

import pytest

from benchmarks import beside_transformers as shared
from benchmarks import two_streams, visualbert

QUICK = ["--quick", "--examples", "12", "--batch", "4", "--rounds", "2"]


@pytest.fixture(params=[two_streams.LXMERTWorkload, visualbert.VisualBERTWorkload])
def workload(request):
    layers = [1, 1, 1] if request.param is two_streams.LXMERTWorkload else 2
    options = shared.build_parser("x", two_streams.__doc__).parse_args(QUICK)
    options.layers = layers
    return request.param(options)


def test_all_ways_have_the_same_loss(workload):
    assert workload.difference() < 1e-5
    batch = workload.batches[0]
    losses = {}
    for way in shared.WAYS:
        workload._prepare(way)
        losses[way] = float(workload.loss(way, batch).detach())
    assert losses["padded"] == pytest.approx(losses["transformers"], rel=1e-5)
    assert losses["supervised"] > losses["unpadded"] + 0.1  # the loss of attention is added


def test_padding_is_there_to_be_skipped(workload):
    masks = [batch["region_attention_mask"] for batch in workload.batches]
    assert all(0.3 < float(mask.float().mean()) < 0.95 for mask in masks)


@pytest.mark.parametrize("benchmark", [two_streams, visualbert])
def test_ratios_are_what_they_are_called(monkeypatch, capsys, benchmark):
    seconds = {"transformers": 6.0, "padded": 3.0, "unpadded": 2.0, "supervised": 2.5}
    monkeypatch.setattr(shared.Workload, "epoch", lambda self, way, steps=None: seconds[way])
    assert benchmark.main([*QUICK, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["speed_of_padded_over_transformers"] == [2.0] * 3
    assert found["speed_of_unpadded_over_transformers"] == [3.0] * 3
    assert found["speed_of_unpadded_over_padded"] == [1.5] * 3
    assert found["time_of_supervised_over_unpadded"] == [1.25] * 3

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Beside transformers' LXMERT and VisualBERT every way has the same loss, and the ratios are what they are called."""

import json

import pytest

from benchmarks import beside_transformers as benchmark

QUICK = ["--quick", "--examples", "12", "--batch", "4", "--rounds", "2"]


@pytest.mark.parametrize("model, layers", [("lxmert", "1 1 1"), ("visualbert", "2")])
def test_all_ways_have_the_same_loss(model, layers):
    options = benchmark.build_parser().parse_args([model, *QUICK, "--layers", *layers.split()])
    workload = benchmark.make_workload(options)
    assert workload.difference() < 1e-5
    losses = {}
    for way in benchmark.WAYS:
        workload._prepare(way)
        losses[way] = float(workload.loss(way, workload.batches[0]).detach())
    assert losses["padded"] == pytest.approx(losses["transformers"], rel=1e-5)
    assert losses["supervised"] > losses["unpadded"] + 0.1  # the loss of attention is added
    masks = [batch["region_attention_mask"] for batch in workload.batches]
    assert all(0.3 < float(mask.float().mean()) < 0.95 for mask in masks)  # there is padding to be skipped


def test_ratios_are_what_they_are_called(monkeypatch, capsys):
    seconds = {"transformers": 6.0, "padded": 3.0, "unpadded": 2.0, "supervised": 2.5}
    monkeypatch.setattr(benchmark.Workload, "epoch", lambda self, way, steps=None: None)
    monkeypatch.setattr(benchmark, "take_turns", lambda ways, *_: {way: [seconds[way]] * 2 for way in ways})
    assert benchmark.main(["visualbert", *QUICK, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [found[name] for name in benchmark.RATIOS] == [[2.0] * 2, [3.0] * 2, [1.5] * 2, [1.25] * 2]
    assert benchmark.main(["lxmert", *QUICK, "--layers", "2"]) == 2

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Every way of the benchmark has the same loss, that of transformers too, and its ratios are what they are called."""

import json

import pytest
import torch

from benchmarks import pretraining_step as benchmark

QUICK = ["--quick", "--examples", "12", "--batch", "4", "--rounds", "2"]
LAYERS = {"vl_bert": "1", "lxmert": "1 1 1", "visualbert": "2"}


@pytest.mark.parametrize("family", LAYERS)
def test_all_ways_have_the_same_loss(family):
    options = benchmark.build_parser().parse_args([family, *QUICK, "--layers", *LAYERS[family].split()])
    workload = benchmark.Workload(options)
    assert workload.difference() < 1e-5
    losses = {}
    for way in workload.ways:
        workload.prepare(way)
        losses[way] = float(workload.loss(way, workload.batches[0]).detach())
    assert losses["padded"] == pytest.approx(losses.get("transformers", losses["unpadded"]), rel=1e-5)
    assert losses["direct"] > losses["unpadded"] + 0.1  # the loss of attention is added
    masks = [batch["region_attention_mask"] for batch in workload.batches]
    assert all(0.3 < float(mask.float().mean()) < 0.95 for mask in masks)  # there is padding to be skipped


@pytest.mark.parametrize("forward", [[], ["--forward"]])
def test_only_a_training_step_changes_the_weights(forward):
    workload = benchmark.Workload(benchmark.build_parser().parse_args(["vl_bert", *QUICK, *forward]))
    before = [parameter.clone() for parameter in workload.ours.parameters()]
    workload.epoch("unpadded", steps=1)
    pairs = zip(before, workload.ours.parameters(), strict=True)
    assert any(not torch.equal(one, other) for one, other in pairs) != bool(forward)


def test_ratios_are_what_they_are_called(monkeypatch, capsys):
    seconds = {"transformers": 6.0, "padded": 3.0, "unpadded": 2.0, "direct": 2.5}
    monkeypatch.setattr(benchmark.Workload, "epoch", lambda self, way, steps=None: None)
    monkeypatch.setattr(benchmark, "take_turns", lambda ways, *_: {way: [seconds[way]] * 2 for way in ways})
    assert benchmark.main(["visualbert", *QUICK, "--json"]) == 0
    difference, *found = json.loads(capsys.readouterr().out)["visualbert"].values()
    assert difference[0] < 1e-5
    assert found == [[2.0] * 2, [3.0] * 2, [1.5] * 2, [1.25] * 2]
    assert benchmark.main(["lxmert", *QUICK, "--layers", "2"]) == 2

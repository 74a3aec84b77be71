# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Every way of the benchmark has the same examples and the same loss, and its ratios are what they are called."""

import pytest
import torch

from benchmarks import pretraining_step as benchmark


@pytest.fixture
def workload():
    return benchmark.Workload(benchmark.parse(["--quick", "--device", "cpu"]))


def rows(batches, name):
    masks = {"input_ids": "attention_mask", "region_boxes": "region_attention_mask"}
    return sorted(
        tuple(row[mask.bool()].flatten().tolist())
        for b in batches
        for row, mask in zip(b[name], b[masks[name]], strict=True)
    )


def test_batches_of_like_lengths_hold_the_same_examples_with_less_padding():
    config = benchmark.make_model(benchmark.parse(["--quick", "--device", "cpu"])).config
    examples = benchmark.make_examples(64, config)
    plain, alike = (benchmark.make_batches(examples, 4, by_length, "cpu") for by_length in (False, True))
    for name in ("input_ids", "region_boxes"):
        assert rows(plain, name) == rows(alike, name)
    assert benchmark.fill(plain) < 0.75 < benchmark.fill(alike) < 1
    counts = [int(batch["region_attention_mask"].sum(1).max()) for batch in plain]
    assert all(10 <= count <= 100 for count in counts)


def test_every_way_has_the_same_loss_and_is_measured(workload):
    losses = {way: workload.loss(way) for way in benchmark.WAYS}
    assert max(losses.values()) - min(losses.values()) < 1e-5 < losses["padded"]
    before = [parameter.clone() for parameter in workload.model.parameters()]
    times = benchmark.measure(workload, rounds=1, device="cpu")
    assert list(times) == list(benchmark.WAYS) and all(taken[0] > 0 for taken in times.values())
    assert any(not torch.equal(a, b) for a, b in zip(before, workload.model.parameters(), strict=True))


def test_ratios():
    times = {"padded": [2.0, 3.0], "length-aware": [1.0, 3.0], "unpadded": [4.0, 1.0], "both": [1.0, 1.0]}
    expected = {"padded": [1.0, 1.0], "length-aware": [2.0, 1.0], "unpadded": [0.5, 3.0], "both": [2.0, 3.0]}
    assert benchmark.ratios(times) == expected

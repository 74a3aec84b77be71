# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The benchmark of large products runs, and says what this processor does not have."""

import json

from benchmarks import matmul_precision as benchmark


def test_both_precisions_train_the_same(capsys):
    assert benchmark.main(["--quick", "--sizes", "small", "--rounds", "1", "--batches", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["small"]
    assert list(found) == ["float32", "bfloat16"]
    for each in found.values():
        assert len(each["rounds"]) == 1 and each["rounds"][0] > 0
        assert each["loss_difference"] < 1e-5  # tests switch bfloat16 off, so all compute in float32


def test_the_table_says_what_does_not_differ(capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "has_faster_float32", lambda: False)
    assert benchmark.main(["--quick", "--rounds", "1", "--batches", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("note: this processor has no bfloat16 products")
    assert lines[1].startswith("note: PyTorch's own products are the fast ones")
    rows = [line.split()[:2] for line in lines[3:]]
    assert rows == [[size, precision] for size in ("small", "base") for precision in ("float32", "bfloat16")]

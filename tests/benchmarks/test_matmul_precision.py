# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The benchmark of bfloat16 layers runs, and says when there is nothing to compare."""

import json

from benchmarks import matmul_precision as benchmark


def test_both_precisions_train_the_same(capsys):
    assert benchmark.main(["--quick", "--sizes", "small", "--rounds", "1", "--batches", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["small"]
    assert len(found["rounds"]) == 1 and found["rounds"][0] > 0
    assert found["loss_difference"] < 1e-5  # tests switch AMX off, so both compute in float32


def test_the_table_says_that_nothing_differs(capsys):
    assert benchmark.main(["--quick", "--rounds", "1", "--batches", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("note: this processor has no bfloat16 products")
    assert [line.split()[0] for line in lines[2:]] == ["small", "base"]

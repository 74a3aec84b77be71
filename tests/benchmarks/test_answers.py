# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The benchmark of `look_many` compares passes of the same batches, each row once."""

from types import SimpleNamespace

from benchmarks import answers as benchmark

OPTIONS = SimpleNamespace(quick=True, rounds=1)


def test_the_plain_passes_have_the_batches_of_the_looks():
    rows = benchmark.Rows("look_many", 64, OPTIONS)
    tokens = rows.looks.patches.tokenizer
    said = []
    for batch in rows.batches:
        assert len(batch["input_ids"]) <= benchmark.BATCH
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            said.append(tokens.decode(ids[mask.bool()], skip_special_tokens=True).split()[-20:])
    assert sorted(said) == sorted(each.answer.text.split()[-20:] for each in rows.asked)
    assert rows.step() == len(rows.asked)
    rows.way = "table"
    assert rows.step() == len(rows.asked)
    rows.way = "forward"
    rows.step()

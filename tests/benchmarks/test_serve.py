# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The benchmark of `serve` compares the same answer with and without places of its words."""

from types import SimpleNamespace

from benchmarks import serve as benchmark

OPTIONS = SimpleNamespace(quick=True, rounds=1)


def test_both_ways_answer_the_same_in_full():
    with_places = benchmark.Chat("grounding", 64, OPTIONS).step()
    plain = benchmark.Chat("plain", 64, OPTIONS).step()
    assert with_places.content == plain.content
    assert len(with_places.grounding["words"]) > benchmark.ANSWER // 2
    assert not hasattr(plain, "grounding")

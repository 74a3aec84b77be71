# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Benchmarks without new processes, which take seconds to import their libraries."""

import pickle
from collections.abc import Callable

import pytest

from benchmarks import recipe_step, region_scale


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> list[Callable]:
    """The functions that a benchmark calls in processes of their own; here they are called in this one."""
    called = []

    def call(function, *arguments):
        pickle.dumps((function, arguments))  # an error here is one that a process of its own would end in
        called.append(function)
        return function(*arguments)

    for benchmark in (recipe_step, region_scale):
        monkeypatch.setattr(benchmark, "run_apart", call)
    return called

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A process of a launch lets go of its models before it leaves the group."""

import sys
import weakref
from types import SimpleNamespace

import pytest

from grounded_attention.utils.processes import leave_group


class Trainer:
    """Holds a cycle, as a Trainer and its callbacks do."""

    def __init__(self):
        self.callback = SimpleNamespace(trainer=self)


@pytest.mark.parametrize("initialised", [True, False])
def test_models_are_gone_when_the_group_is_left(monkeypatch, initialised):
    alive = []
    trainer = weakref.ref(Trainer())
    group = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: initialised,
        destroy_process_group=lambda: alive.append(trainer() is not None),
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    leave_group()
    assert alive == [False] * initialised

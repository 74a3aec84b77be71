# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How many operators a supervised step has: on a GPU each costs a launch, and one that reads a value waits."""

from argparse import Namespace
from collections import Counter

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import gpu

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero")
LAYERS = 12
SIZES = Namespace(device="cpu", batch=3, vgp_batch=3)


class Operators(TorchDispatchMode):
    """Counts the operators that compute; a view of a tensor does not."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        aliases = [each.alias_info for each in operator._schema.returns]
        if not any(alias is not None and not alias.is_write for alias in aliases):
            self.counts[operator._schema.name.removeprefix("aten::")] += 1
        return operator(*args, **(kwargs or {}))

    @property
    def waits(self):
        return sum(self.counts[name] for name in WAITS)


def count(monkeypatch, task, method, layers, unpad=True):
    """The operators of the second step's forward and backward pass."""
    monkeypatch.setitem(gpu.TINY, "num_hidden_layers", layers)
    training = gpu.Training(task, gpu.Way("counted", method=method, unpad=unpad), SIZES)
    training.model.eval()  # with dropout SDPA is many operators on a CPU and one on a GPU
    training.loss().backward()  # the first batch is checked for rows that are supervised
    with Operators() as found:
        training.loss().backward()
    return found


@pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])
@pytest.mark.parametrize("task", gpu.CLASSES)
def test_a_supervised_step_has_few_more_operators_and_never_waits(monkeypatch, task, unpad):
    plain = count(monkeypatch, task, "none", LAYERS, unpad)
    supervised = count(monkeypatch, task, "direct", LAYERS, unpad)
    assert supervised.waits == plain.waits
    assert supervised.counts.total() < 1.2 * plain.counts.total()


def test_a_layer_adds_no_more_than_the_sum_of_two_gradients(monkeypatch):
    """Rows of all layers are read at once; only the gradients of queries and keys are added in each layer."""
    extra = []
    for layers in (4, LAYERS):
        both = [count(monkeypatch, "VGP", method, layers).counts for method in ("none", "direct")]
        extra.append(both[1].total() - both[0].total())
    assert extra[1] - extra[0] == 2 * (LAYERS - 4)

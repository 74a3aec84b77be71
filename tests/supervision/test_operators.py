# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How many operators a supervised step has: on a GPU each costs a launch, and one that reads a value waits."""

from argparse import Namespace

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import gpu

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero")
LAYERS = 12
SIZES = Namespace(device="cpu", batch=3, vgp_batch=3)


class Operators(TorchDispatchMode):
    """Lists the operators that compute; a view of a tensor does not."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if not operator.is_view:
            self.names.append(operator._schema.name.removeprefix("aten::"))
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize("unpad", [True, False])
@pytest.mark.parametrize("task", gpu.CLASSES)
def test_a_supervised_step_has_few_more_operators_and_never_waits(monkeypatch, task, unpad):
    monkeypatch.setitem(gpu.TINY, "num_hidden_layers", LAYERS)
    found = {}
    for method in ("none", "direct"):
        training = gpu.Training(task, gpu.Way("counted", method=method, unpad=unpad), SIZES)
        training.model.eval()  # with dropout SDPA is many operators on a CPU and one on a GPU
        training.loss().backward()  # the first batch is checked for rows that are supervised
        with Operators() as found[method]:
            training.loss().backward()
    plain, supervised = (found[method].names for method in ("none", "direct"))
    waits = [sum(map(names.count, WAITS)) for names in (plain, supervised)]
    assert waits[0] == waits[1]
    # Two sums of gradients a layer, and what all layers share.
    assert len(supervised) < 1.2 * len(plain)

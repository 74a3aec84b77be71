# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What every metric over batches and processes has."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class StreamingMetric:
    """A metric over batches and processes: `update` adds a batch, `state` has sums, which are added over processes,
    and `compute` makes the numbers of them."""

    def __init__(self) -> None:
        self._state: dict[str, Tensor] = {}

    def forward_kwargs(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """What the model is asked for beside its outputs: nothing."""
        return {}

    def _add(self, **counted: Tensor | float) -> None:
        """Adds the numbers of a batch to the sums, in float64."""
        for name, number in counted.items():
            value = torch.as_tensor(number).detach().double()
            self._state[name] = self._state[name] + value if name in self._state else value

    def state(self) -> dict[str, Tensor]:
        """The sums so far."""
        return dict(self._state)

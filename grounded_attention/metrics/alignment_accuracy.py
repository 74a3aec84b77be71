# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Accuracy of the head of grounding alignment on balanced pairs of phrases and regions."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from grounded_attention.supervision import GroundingAlignment
from grounded_attention.supervision.method import RowGenerators, fixed_generator

from .streaming import StreamingMetric


class AlignmentAccuracy(StreamingMetric):
    """Share of drawn pairs whose score has the right sign; half of the pairs belong together.

    Args:
        method (`GroundingAlignment`): the method, which draws the pairs as in training.
    """

    def __init__(self, method: GroundingAlignment):
        super().__init__()
        self.method = method

    def prepare_batch(
        self, batch: Mapping[str, Tensor], generators: RowGenerators = fixed_generator
    ) -> dict[str, Any]:
        """The pairs to add to a batch."""
        return self.method.prepare_batch(batch, generators)

    def forward_kwargs(self, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        """Requests the scores of the pairs."""
        return self.method.forward_kwargs(batch)

    def update(self, outputs: Any, batch: Mapping[str, Tensor]) -> None:
        """Counts one batch."""
        drawn, labels = self.method.drawn(batch)
        right = (outputs.alignment_logits > 0) == (labels > 0)
        self._add(right=right[drawn].sum(), pairs=drawn.sum())

    def compute(self, state: Mapping[str, Tensor]) -> dict[str, float]:
        """`alignment_accuracy`, `alignment_chance` (one half) and `alignment_count`; only the count without pairs."""
        if not state:
            return {}
        pairs = state["pairs"].item()
        if not pairs:
            return {"alignment_count": 0}
        right = state["right"].item() / pairs
        return {"alignment_accuracy": right, "alignment_chance": 0.5, "alignment_count": int(pairs)}

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""NLVR2: accuracy, and consistency over all image pairs of a statement, grouped as in the official script."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .item_scores import ItemScores, Scored

# Position of the image pair in an identifier such as dev-850-0-1.
PAIR = 2
PARTS = 4


def statement_of(identifier: str) -> str:
    """The identifier `<split>-<set>-<pair>-<sentence>` without the pair, the groups of the official script."""
    parts = identifier.split("-")
    if len(parts) != PARTS or not all(parts):
        raise ValueError(f"identifier {identifier!r}: expected <split>-<set>-<pair>-<sentence>, such as dev-850-0-1")
    parts[PAIR] = ""
    return "-".join(parts)


class StatementScores(ItemScores):
    """Scores of single examples and consistency of their statements, over batches and processes."""

    GROUP = "wrong"

    def __init__(self, name: str, score: Callable[[Any, Mapping[str, Any]], Scored], right: str):
        super().__init__(name, score)
        self.right = right

    def state(self) -> dict[str, Tensor]:
        """The state of `ItemScores`, and the number of wrong examples of each statement."""
        items = self.items()
        wrong: dict[str, float] = defaultdict(float)
        for identifier, value in zip(items["example_id"], items.get(self.right, ()), strict=self.right in items):
            if value is not None:
                wrong[f"{self.GROUP}:{statement_of(identifier)}"] += value < 1
        return super().state() | {key: torch.tensor(count, dtype=torch.float64) for key, count in wrong.items()}

    def compute(self, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """The metrics of `ItemScores`, and `{name}_consistency` if there are labels."""
        groups = [value for key, value in state.items() if key.startswith(f"{self.GROUP}:")]
        metrics = super().compute({k: v for k, v in state.items() if not k.startswith(f"{self.GROUP}:")})
        if groups:
            metrics[f"{self.name}_consistency"] = float(sum(value == 0 for value in groups)) / len(groups)
        return metrics

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""NLVR2: accuracy, and consistency over all image pairs of a statement, grouped as the official script groups them."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import datasets
import evaluate
import torch
from torch import Tensor

from .item_scores import ItemScores, Scored

# Of an identifier such as dev-850-0-1: which pair of images the statement is made about.
PAIR = 2
PARTS = 4


def statement_of(identifier: str) -> str:
    """What an identifier `<split>-<set>-<pair>-<sentence>` says with the pair left out, as the official script groups.

    Two statements of the same words in different sets are two statements.

    Raises:
        ValueError: an identifier that has not these four parts.
    """
    parts = identifier.split("-")
    if len(parts) != PARTS or not all(parts):
        raise ValueError(f"identifier {identifier!r}: expected <split>-<set>-<pair>-<sentence>, such as dev-850-0-1")
    parts[PAIR] = ""
    return "-".join(parts)


def accuracy_and_consistency(right: Mapping[str, bool]) -> dict[str, float]:
    """
    `accuracy`, the share of the examples that are right, and `consistency`, that of the statements which are right
    about every pair of images they are made about.

    Args:
        right: identifier -> whether the prediction is right; at least one.

    Raises:
        ValueError: nothing to score, or an identifier that is none.
    """
    if not right:
        raise ValueError("no predictions to score")
    statements: dict[str, bool] = defaultdict(lambda: True)
    for identifier, value in right.items():
        statements[statement_of(identifier)] &= bool(value)
    return {"accuracy": _share(right.values()), "consistency": _share(statements.values())}


def _share(values: Any) -> float:
    return sum(map(bool, values)) / len(values)


class NLVR2Accuracy(evaluate.Metric):
    """
    Accuracy and consistency of NLVR2 as an `evaluate` metric.

    `compute(predictions=[0 or 1], references=[0 or 1], identifiers=["dev-850-0-1", ...])` returns `accuracy` and
    `consistency`, each in [0, 1].
    """

    def _info(self) -> evaluate.MetricInfo:
        truth = datasets.Value("int64")
        return evaluate.MetricInfo(
            description="Accuracy, and the share of statements that are right about every pair of images.",
            citation="Suhr et al., 2019: A Corpus for Reasoning about Natural Language Grounded in Photographs",
            inputs_description="predictions, references: 1 for true, 0 for false; identifiers: one an example",
            features=datasets.Features({"predictions": truth, "references": truth}),
        )

    def _compute(
        self, predictions: Sequence[int], references: Sequence[int], identifiers: Sequence[str]
    ) -> dict[str, float]:
        if len(identifiers) != len(predictions):
            raise ValueError(f"{len(identifiers)} identifiers for {len(predictions)} predictions")
        twice = len(identifiers) - len(set(identifiers))
        if twice:
            raise ValueError(f"{twice} identifiers are given twice: each example counts once")
        pairs = zip(predictions, references, strict=True)
        return accuracy_and_consistency({i: p == r for i, (p, r) in zip(identifiers, pairs, strict=True)})


class StatementScores(ItemScores):
    """Scores of single examples, and the consistency of the statements they belong to, over batches and processes.

    Args:
        name: prefix of the figures `{name}_count` and `{name}_consistency`.
        score: as of `ItemScores`; `example_id` of the batch are identifiers.
        right: the score that says whether an example is right.
    """

    GROUP = "wrong"

    def __init__(self, name: str, score: Callable[[Any, Mapping[str, Any]], Scored], right: str):
        super().__init__(name, score)
        self.right = right

    def state(self) -> dict[str, Tensor]:
        """That of `ItemScores`, and of each statement how many of its examples are wrong."""
        items = self.items()
        wrong: dict[str, float] = defaultdict(float)
        for identifier, value in zip(items["example_id"], items.get(self.right, ()), strict=self.right in items):
            if value is not None:
                wrong[f"{self.GROUP}:{statement_of(identifier)}"] += value < 1
        return super().state() | {key: torch.tensor(count, dtype=torch.float64) for key, count in wrong.items()}

    def compute(self, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """The figures of `ItemScores`, and `{name}_consistency` where there are labels."""
        groups = [value for key, value in state.items() if key.startswith(f"{self.GROUP}:")]
        figures = super().compute({k: v for k, v in state.items() if not k.startswith(f"{self.GROUP}:")})
        if groups:
            figures[f"{self.name}_consistency"] = _share([value == 0 for value in groups])
        return figures

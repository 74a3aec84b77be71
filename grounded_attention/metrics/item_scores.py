# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Scores of single examples and their means; paired comparisons of two models need them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from grounded_attention.utils.named_types import Batch, Columns, Fields

ID_COLUMNS = ("example_id", "image_id")
SUM = "sum"
COUNT = "count"
TOTAL = "total"


@dataclass(frozen=True)
class Scored:
    """The scores of the B examples of a batch."""

    scores: Mapping[str, Sequence[float | None]]
    totals: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, Sequence[Any]] = field(default_factory=dict)


class StreamingMetric:
    """A metric over batches and processes: `update` adds a batch, `state` has sums, which are added over processes,
    and `compute` makes the numbers of them."""

    def __init__(self) -> None:
        self._state: Fields = {}

    def forward_kwargs(self, batch: Batch) -> Fields:
        """What the model is asked for beside its outputs: nothing."""
        return {}

    def _add(self, **counted: Tensor | float) -> None:
        """Adds the numbers of a batch to the sums, in float64."""
        for name, number in counted.items():
            value = torch.as_tensor(number).detach().double()
            self._state[name] = self._state[name] + value if name in self._state else value

    def state(self) -> Fields:
        """The sums so far."""
        return dict(self._state)


class ItemScores(StreamingMetric):
    """A streaming metric that keeps the scores of each example.

    Example:
        >>> metric = ItemScores("sign", lambda outputs, batch: Scored({"sign_accuracy": (outputs > 0).tolist()}))
        >>> metric.update(torch.tensor([1.0, -1.0]), {"example_id": ["a", "b"], "image_id": ["1", "1"]})
        >>> metric.compute(metric.state())
        {'sign_accuracy': 0.5, 'sign_count': 2}
        >>> metric.items()["sign_accuracy"]
        [1.0, 0.0]
    """

    def __init__(self, name: str, score: Callable[[Any, Columns], Scored]):
        super().__init__()
        self.name = name
        self.score = score
        self._items: dict[str, list] = {column: [] for column in ID_COLUMNS}
        self._totals: dict[str, float] = {}
        self._scores: dict[str, None] = {}  # their names, in order

    def update(self, outputs: Any, batch: Batch) -> None:
        """Scores one batch."""
        scored = self.score(outputs, batch)
        numbers = {name: [None if v is None else float(v) for v in values] for name, values in scored.scores.items()}
        columns = {**{column: list(batch[column]) for column in ID_COLUMNS}, **numbers, **scored.notes}
        before = len(self._items["example_id"])
        added = len(columns["example_id"])
        for name, values in columns.items():
            if len(values) != added:
                raise ValueError(f"{self.name}: {name} has {len(values)} values for {added} examples")
            self._items.setdefault(name, [None] * before).extend(values)
        for values in self._items.values():
            values.extend([None] * (before + added - len(values)))
        self._scores.update(dict.fromkeys(numbers))
        for name, value in scored.totals.items():
            self._totals[name] = self._totals.get(name, 0) + value

    def state(self) -> Fields:
        """Sum and count of each score, and the totals: `<kind>:<name>` -> () float64."""
        sums = {f"{COUNT}:": float(len(self._items["example_id"]))}
        for name in self._scores:
            counted = [value for value in self._items[name] if value is not None]
            sums |= {f"{SUM}:{name}": sum(counted), f"{COUNT}:{name}": float(len(counted))}
        sums |= {f"{TOTAL}:{name}": value for name, value in self._totals.items()}
        return {key: torch.tensor(value, dtype=torch.float64) for key, value in sums.items()}

    def compute(self, state: Columns) -> Fields:
        """The mean of each score with at least one example, the totals, and `{name}_count`."""
        metrics: Fields = {}
        for key, value in state.items():
            kind, _, name = key.partition(":")
            if kind == SUM and state[f"{COUNT}:{name}"] > 0:
                metrics[name] = (value / state[f"{COUNT}:{name}"]).item()
            elif kind == TOTAL:
                metrics[name] = int(value)
        return {**metrics, f"{self.name}_count": int(state[f"{COUNT}:"])}

    def items(self) -> dict[str, list]:
        """Columns `example_id`, `image_id`, every score and note, with one entry per example; None if missing."""
        return {name: list(values) for name, values in self._items.items()}


def interleave(shares: Sequence[Mapping[str, Sequence]]) -> dict[str, list]:
    """Merges the items of several processes, each with every n-th example, into the order of the data set."""
    names = dict.fromkeys(name for share in shares for name in share)
    lengths = [len(share.get(ID_COLUMNS[0], ())) for share in shares]
    places = [(i % len(shares), i // len(shares)) for i in range(sum(lengths))]
    columns = {}
    for name in names:
        columns[name] = [share.get(name) or [None] * length for share, length in zip(shares, lengths, strict=True)]
    joined = {name: [parts[process][number] for process, number in places] for name, parts in columns.items()}
    return {
        name: values for name, values in joined.items() if name in ID_COLUMNS or any(v is not None for v in values)
    }


def check_complete(wanted: Iterable[Any], found: Collection[Any], what: str) -> None:
    """Checks that there is something for each question."""
    questions = [*wanted]
    missing = sorted(str(each) for each in questions if each not in found)
    if missing:
        raise ValueError(f"{what} for {len(missing)} of {len(questions)} questions, such as {', '.join(missing[:3])}")

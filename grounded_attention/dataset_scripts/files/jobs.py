# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Long jobs over data, for engines that exist: a batch of columns in, a batch of columns out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from grounded_attention.utils.named_types import Columns, Fields, Row


class Job(ABC):
    """A long job over data, the same for every engine.

    `datasets.Dataset.map(job, batched=True, num_proc=2)`, Ray Data's `map_batches`, the processes of a launch and our
    commands call the same class. It is pickled without its models: each process makes them once, for its first batch.

    Args:
        load (`Callable[[], Any]`): makes the models of the job in a process; a function of a module, which every
            engine can pickle.

    Attributes:
        schema (`pyarrow.Schema`): the columns that come out, the same for every batch.
        texts (`tuple[str, ...]`): columns of texts that every row needs.
    """

    schema: ClassVar[pa.Schema]
    texts: ClassVar[tuple[str, ...]] = ()
    _made: Any = None

    def __init__(self, load: Callable[[], Any]) -> None:
        self.load = load

    def make(self) -> Any:
        """What this process needs: the models, ready for work."""
        return self.load()

    @property
    def made(self) -> Any:
        """What `make` made in this process."""
        if self._made is None:
            self._made = self.make()
        return self._made

    def __getstate__(self) -> Fields:
        return {**vars(self), "_made": None}

    @abstractmethod
    def work(self, rows: Sequence[Row]) -> Iterator[Iterable[Row]]:
        """Yields the rows that come out of each row, in their order."""

    def table(self, rows: Sequence[Row], advance: Callable[[], object] | None = None) -> pa.Table:
        """The rows that come out of some rows; `advance` is called after each of these."""
        for place, row in enumerate(rows):
            for name in self.texts:
                if not isinstance(row.get(name), str):
                    has = f"found {row[name]!r}" if name in row else f"the columns are {', '.join(row)}"
                    raise ValueError(f"row {place} of the batch: column {name}: {has}, expected a text")
        found: list[Row] = []
        for of_row in self.work(rows):
            found += of_row
            if advance is not None:
                advance()
        return pa.Table.from_pylist(found, self.schema)

    def __call__(self, batch: Columns | pa.Table) -> pa.Table:
        """Does the job for a batch.

        Args:
            batch (`Mapping[str, list]` or `pyarrow.Table`): the columns of some rows, of equal length.

        Raises:
            ValueError: if a column is neither a list nor of Arrow: arrays of NumPy have lost types and missing values.
        """
        if isinstance(batch, pa.Table):
            return self.table(batch.to_pylist())
        if not isinstance(batch, Mapping):
            found = type(batch).__name__
            raise ValueError(f"a batch is of type {found}; expected its columns, by name, or a table of pyarrow")
        for name, column in batch.items():
            if not isinstance(column, list):
                found = type(column).__name__
                hint = "in datasets: map(job, batched=True); in Ray: batch_format='pyarrow'"
                raise ValueError(f"column {name}: found {found}, expected a list; {hint}")
        sizes = {name: len(column) for name, column in batch.items()}
        if len({*sizes.values()}) > 1:
            raise ValueError(f"columns of unequal length: {sizes}")
        rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
        return self.table(rows)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The index of a region table: image id -> the number of its row.

The ids stay in the mapped file, whose pages all processes share. Each process keeps 12 bytes a row: the hashes of the
ids, sorted, and their rows. A dictionary takes some 150, and forked workers copy it page by page, since reading a
Python object writes its reference count.
"""

from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.utils.whole_files import whole_file

from .shards import COPY_HINT, read_rows

SCHEMA = pa.schema(
    [pa.field("image_id", pa.string(), nullable=False), pa.field("regions", pa.int64(), nullable=False)]
)
_CHUNK = 1 << 16  # ids that are Python objects at the same time


class RegionIndex:
    """Image ids in the order of the rows, and the number of regions of each row."""

    def __init__(self, ids: pa.StringArray, counts: npt.NDArray[np.int64]) -> None:
        self._ids = ids
        self.counts = counts
        hashes = np.fromiter(map(hash, self), np.int64, len(ids))
        order = np.argsort(hashes)
        hashes = hashes[order]
        if (hashes[1:] == hashes[:-1]).any() and len(set(self)) < len(ids):
            raise ValueError(f"{len(ids)} ids, of which {len(set(self))} are different")
        # Elements of a memoryview are Python numbers, faster than those of an array.
        self._hashes = hashes.data
        self._order = order.astype(np.uint32).data

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _CHUNK):
            yield from self._ids.slice(start, _CHUNK).to_numpy(zero_copy_only=False)

    def row(self, image_id: object) -> int | None:
        """Returns the number of an image's row; None if there is none."""
        if not isinstance(image_id, str):
            return None
        code = hash(image_id)
        place = bisect_left(self._hashes, code)
        while place < len(self) and self._hashes[place] == code:
            row = self._order[place]
            if self._ids[row].as_py() == image_id:
                return row
            place += 1
        return None


def write_index(path: Path, ids: list[str], counts: npt.NDArray[np.int64]) -> int:
    """Writes the index of a table and returns its size in bytes."""
    batch = pa.RecordBatch.from_arrays([pa.array(ids, pa.string()), pa.array(counts)], schema=SCHEMA)
    with whole_file(path, durable=True) as draft:
        with pa.ipc.new_stream(str(draft), SCHEMA) as writer:
            writer.write_batch(batch)
        return draft.stat().st_size


def read_index(path: Path, size: int, rows: int) -> RegionIndex:
    """Reads the index of a table with this size in bytes and this number of rows."""
    batch = read_rows(path, size)
    try:
        if batch.schema != SCHEMA or len(batch) != rows:
            raise ValueError(f"{len(batch)} rows with {batch.schema.names}, but {rows} in the manifest")
        return RegionIndex(batch.column("image_id"), batch.column("regions").to_numpy())
    except ValueError as error:
        raise DataError("the index is damaged", file=path, found=str(error), hint=COPY_HINT) from error

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The index of a region table: image id -> where its row is.

The ids and places stay in the mapped file, whose pages all processes share. Each process keeps at most 8 bytes a row:
the rows, sorted by the hash of their ids, and where each group of similar hashes begins. A dictionary takes some 150,
and forked workers copy it page by page, since reading a Python object writes its reference count.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from grounded_attention.dataset_scripts.files.errors import DataError

from .files import map_file
from .rows import ARROW_ERRORS

_CHUNK = 1 << 16  # ids that are Python objects at the same time


class RegionIndex:
    """Image ids in the order of the rows, and the place of each row."""

    def __init__(self, content: memoryview, offsets: np.ndarray, places: Sequence[npt.NDArray[np.int64]]) -> None:
        self._content, self._offsets = content, _numbers(offsets)
        self._places = [_numbers(column) for column in places]
        hashes = np.empty(len(self), dtype=np.int64)
        for start in range(0, len(self), _CHUNK):
            ids = self._decode(start)
            hashes[start : start + len(ids)] = np.fromiter(map(hash, ids), np.int64, len(ids))
        order = np.argsort(hashes)
        self._order, hashes = _numbers(order.astype(np.uint32)), hashes[order]
        self.repeated = self._count_repeated(hashes)
        # The first bits of a hash are its group, of one or two rows.
        bits = max(1, len(self).bit_length() - 1)
        self._shift, self._half = 64 - bits, 1 << (bits - 1)
        groups = np.searchsorted(hashes >> self._shift, np.arange(-self._half, self._half + 1))
        self._starts = _numbers(groups.astype(np.uint32))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _CHUNK):
            yield from self._decode(start)

    def _decode(self, start: int) -> list[str]:
        bounds = self._offsets[start : start + _CHUNK + 1].tolist()
        content = bytes(self._content[bounds[0] : bounds[-1]])
        return [content[first - bounds[0] : last - bounds[0]].decode("utf-8") for first, last in pairwise(bounds)]

    def _id(self, row: int) -> str:
        return str(self._content[self._offsets[row] : self._offsets[row + 1]], "utf-8")

    def row(self, image_id: object) -> int | None:
        """Returns the number of an image's row; None if there is none."""
        if not isinstance(image_id, str):
            return None
        group = (hash(image_id) >> self._shift) + self._half
        for row in self._order[self._starts[group] : self._starts[group + 1]]:
            if self._id(row) == image_id:
                return row
        return None

    def place(self, row: int) -> tuple[int, int, int]:
        """Returns shard, offset and length of a row."""
        shard, offset, length = self._places
        return shard[row], offset[row], length[row]

    def _count_repeated(self, hashes: npt.NDArray[np.int64]) -> int:
        same = np.flatnonzero(hashes[1:] == hashes[:-1])
        places = sorted({place for first in same.tolist() for place in (first, first + 1)})
        ids = [self._id(self._order[place]) for place in places]
        return len(ids) - len(set(ids))


def _numbers(array: np.ndarray) -> memoryview:
    """A view whose elements are Python numbers, faster than those of an array; only aligned arrays have one."""
    return np.require(array, requirements="A").data


def read_index(path: Path, manifest: Mapping[str, Any]) -> RegionIndex:
    """Reads the index of a table and checks it against the manifest."""
    data = map_file(path, manifest["index_bytes"])
    try:
        content, offsets, places = _read_columns(data)
        _check_places(places, manifest)
        index = RegionIndex(content, offsets, places)
        different = len(index) - index.repeated
        if different != manifest["images"] or len(index) != different:
            raise ValueError(f"{different} different ids of {len(index)}, but {manifest['images']} in the manifest")
    except ARROW_ERRORS as error:
        hint = "copy the table again, or import the features again"
        raise DataError("the index is damaged", file=path, found=str(error)[:200], hint=hint) from error
    return index


def _read_columns(data: pa.Buffer) -> tuple[memoryview, np.ndarray, list[npt.NDArray[np.int64]]]:
    """Reads the ids, their offsets, and the places; copies nothing if there is one record batch."""
    table = pa.ipc.open_file(data).read_all()
    table.validate(full=True)
    if table.schema.types != [pa.string(), *[pa.int64()] * 3] or any(column.null_count for column in table.columns):
        raise ValueError("other columns than those of an index")
    one = table.column(0).num_chunks == 1
    ids, *places = (column.chunk(0) if one else column.combine_chunks() for column in table.columns)
    _, offsets, content = ids.buffers()
    if not len(ids):
        return memoryview(b""), np.zeros(1, np.int32), [np.empty(0, np.int64)] * 3
    starts = np.frombuffer(offsets, np.int32, len(ids) + 1, 4 * ids.offset)
    return memoryview(content or b""), starts, [column.to_numpy() for column in places]


def _check_places(places: Sequence[npt.NDArray[np.int64]], manifest: Mapping[str, Any]) -> None:
    sizes = np.array([shard["bytes"] for shard in manifest["shards"]], dtype=np.int64)
    shard, offset, length = places
    inside = (shard >= 0) & (shard < len(sizes)) & (offset >= 0) & (length > 0)
    inside &= length <= sizes[np.where(inside, shard, 0)] - np.where(inside, offset, 0)
    if not inside.all():
        raise ValueError(f"row {int(inside.argmin())} is outside its shard")

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One shard of a region table: an Arrow stream with one record batch, mapped into memory and checked."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if

from .files import COPY_HINT, map_file
from .rows import Regions, row_digest, row_schema, schema_widths

# What Arrow raises at a damaged file. It checks offsets and sizes itself, and `validate(full=True)` the rest.
ARROW_ERRORS = (pa.ArrowException, ValueError, EOFError, OSError, MemoryError, TypeError, AttributeError, SystemError)
# Of the flatbuffer of a message (`Message.fbs`), whose layout Arrow has verified: the header, and its compression.
_HEADER = 2
_COMPRESSION = 3


def read_rows(path: Path, size: int | None = None) -> pa.RecordBatch:
    """Maps the only record batch of an Arrow stream; refuses one that is damaged or has another size in bytes."""
    buffer = map_file(path, size)
    try:
        head, message = pa.ipc.MessageReader.open_stream(pa.BufferReader(buffer))
        if _is_compressed(message):  # few bytes could then fill the memory
            raise ValueError("compressed rows, expected plain ones")
        batch = pa.ipc.read_record_batch(message, pa.ipc.read_schema(head))
        batch.validate(full=True)
        if any(column.null_count for column in batch.columns):
            raise ValueError("a value is missing")
    except ARROW_ERRORS as error:
        raise DataError("damaged rows", file=path, found=str(error)[:200], hint=COPY_HINT) from error
    return batch


def _is_compressed(message: pa.Message) -> bool:
    metadata = message.metadata.to_pybytes()
    root = int.from_bytes(metadata[:4], "little")
    header = root + _field(metadata, root, _HEADER)
    batch = header + int.from_bytes(metadata[header : header + 4], "little")
    return message.type == "record batch" and _field(metadata, batch, _COMPRESSION) > 0


def _field(metadata: bytes, table: int, number: int) -> int:
    """Where a field of a table of a flatbuffer is, from the start of the table; 0 if it is not there."""
    layout = table - int.from_bytes(metadata[table : table + 4], "little", signed=True)
    size = int.from_bytes(metadata[layout : layout + 2], "little")
    slot = 4 + 2 * number
    if slot < size:
        return int.from_bytes(metadata[layout + slot : layout + slot + 2], "little")
    return 0


class Shard:
    """The rows of a shard; their arrays are read-only views of the mapped file."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        batch = read_rows(path, size)
        self.path = path
        try:
            self.arrays_of_rows = schema_widths(batch.schema)
            if batch.schema != row_schema(self.arrays_of_rows):
                raise ValueError(f"columns {batch.schema.names}")
            self.starts = batch.column("boxes").offsets.to_numpy()
            self._arrays = {name: _values(batch.column(name), self.starts) for name in self.arrays_of_rows}
        except (KeyError, *ARROW_ERRORS) as error:
            raise DataError("not a shard of a region table", file=path, found=str(error)[:200]) from error
        self.ids = batch.column("image_id")
        self.digests = batch.column("checksum")
        self._widths = batch.column("width").to_numpy()
        self._heights = batch.column("height").to_numpy()
        refuse_if(
            min(self._widths.min(), self._heights.min()) < 1,
            "damaged rows: an image without a size",
            file=path,
            hint=COPY_HINT,
        )

    def __len__(self) -> int:
        return len(self.ids)

    def counts(self) -> npt.NDArray[np.int64]:
        """Returns the number of regions of each row."""
        return np.diff(self.starts).astype(np.int64)

    def regions(self, row: int) -> Regions:
        """Returns a row, without a copy and without a comparison with its checksum."""
        start = self.starts[row]
        end = self.starts[row + 1]
        arrays = {name: values[start:end] for name, values in self._arrays.items()}
        return Regions(self.ids[row].as_py(), int(self._widths[row]), int(self._heights[row]), **arrays)

    def verified(self, row: int) -> tuple[Regions, bytes]:
        """Returns a row and its checksum, with which it was compared."""
        regions = self.regions(row)
        digest = self.digests[row].as_py()
        if row_digest(regions) != digest:
            problem = "damaged row: its content does not match its checksum"
            raise DataError(problem, file=self.path, where=f"image {regions.image_id}", hint=COPY_HINT)
        return regions, digest


def _values(column: pa.ListArray, starts: npt.NDArray[np.int32]) -> np.ndarray:
    """The values of all rows of a column, (regions,) or (regions, width)."""
    values = column.values
    if not np.array_equal(column.offsets.to_numpy(), starts) or not (np.diff(starts) > 0).all():
        raise ValueError("rows without regions, or with different numbers of them")
    if not pa.types.is_fixed_size_list(values.type):
        return values.to_numpy()
    return values.flatten().to_numpy().reshape(-1, values.type.list_size)

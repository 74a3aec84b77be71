# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The files of a region table: their names, the manifest, the shards, and the index from an image id to its row.

A shard is an Arrow stream with one record batch, mapped into memory and checked.

The ids of the index stay in the mapped file, whose pages all processes share. Each process keeps 12 bytes a row: the
hashes of the ids, sorted, and their rows. A dictionary takes some 150, and forked workers copy it page by page, since
reading a Python object writes its reference count.
"""

from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from grounded_attention.dataset_scripts.files.errors import DataError, damaged, refuse_if
from grounded_attention.dataset_scripts.files.manifests import ManifestKind, check_file, is_size
from grounded_attention.dataset_scripts.files.records import MAX_INT32
from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.whole_files import whole_file

from .rows import ARRAYS, Regions, row_digest, row_schema, schema_widths

MANIFEST = "regions.json"
INDEX = "regions.index.arrow"
SHARDS = "regions-*.arrow"
KIND = ManifestKind(
    "grounded-attention region table",
    1,
    "a region table",
    hint="build one with `grounded-attention regions import`",
    file=MANIFEST,
    unfinished="the command that wrote it was interrupted; run it again, an import with --resume",
)
PARTIAL = KIND.partial
COPY_HINT = "copy the table again, or import the features again"


def shard_name(number: int, process: int = 0) -> str:
    """Returns the file name of a shard of a process; names sort in the order of their numbers."""
    if not process:
        return f"regions-{number:05d}.arrow"
    return f"regions-{number:05d}-{process:05d}.arrow"


def read_manifest(folder: Path) -> Fields:
    """Reads the manifest of a finished table."""
    return KIND.read_finished(folder, _is_valid)


def _is_valid(content: Fields) -> bool:
    """Checks the parts of a finished manifest that opening the table uses."""
    arrays = content["arrays"]
    shards = content["shards"]
    sizes = [content["images"], content["index_bytes"]]
    for shard in shards:
        sizes += [shard["bytes"], shard["rows"]]
    widths = []
    for name, width in arrays.items():
        widths.append(is_size(width, MAX_INT32) if ARRAYS[name][1] else width is None)
    return (
        all(map(is_size, sizes))
        and all(widths)
        and {"boxes", "features"} <= arrays.keys()
        and arrays["boxes"] == 4
        and arrays["features"] == content["feature_size"]
        and content["images"] == sum(shard["rows"] for shard in shards)
        and all(isinstance(text, str) for text in (content["checksum"], *(shard["file"] for shard in shards)))
        and type(content["feature_size"]) is int
    )


def map_file(path: Path, size: int | None = None) -> pa.Buffer:
    """Maps a file into memory as one buffer; refuses one of another size."""
    if size is None:
        size = path.stat().st_size
    check_file(path, size, COPY_HINT)
    refuse_if(not size, "the file is empty", file=path, hint=COPY_HINT)
    with pa.memory_map(str(path)) as source:
        return source.read_buffer(size)


def add_digest(total: int, digest: bytes) -> int:
    """Adds a row's digest to a table's checksum; the order of the rows makes no difference."""
    return (total + int.from_bytes(digest, "big")) % (1 << 8 * len(digest))


def digest_text(total: int) -> str:
    """Formats a table's checksum as in the manifest: 32 hexadecimal digits."""
    return f"{total:032x}"


# What Arrow raises at a damaged file. It checks offsets and sizes itself, and `validate(full=True)` the rest.
ARROW_ERRORS = (pa.ArrowException, ValueError, EOFError, OSError, MemoryError, TypeError, AttributeError, SystemError)
# Of the flatbuffer of a message (`Message.fbs`), whose layout Arrow has verified: the header, and its compression.
_HEADER = 2
_COMPRESSION = 3


def read_rows(path: Path, size: int | None = None) -> pa.RecordBatch:
    """Maps the only record batch of an Arrow stream; refuses one that is damaged or has another size in bytes."""
    buffer = map_file(path, size)
    with damaged("damaged rows", *ARROW_ERRORS, file=path, hint=COPY_HINT):
        head, message = pa.ipc.MessageReader.open_stream(pa.BufferReader(buffer))
        if _is_compressed(message):  # few bytes could then fill the memory
            raise ValueError("compressed rows, expected plain ones")
        batch = pa.ipc.read_record_batch(message, pa.ipc.read_schema(head))
        batch.validate(full=True)
        if any(column.null_count for column in batch.columns):
            raise ValueError("a value is missing")
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
        with damaged("not a shard of a region table", KeyError, *ARROW_ERRORS, file=path):
            self.arrays_of_rows = schema_widths(batch.schema)
            if batch.schema != row_schema(self.arrays_of_rows):
                raise ValueError(f"columns {batch.schema.names}")
            self.starts = batch.column("boxes").offsets.to_numpy()
            self._arrays = {name: _values(batch.column(name), self.starts) for name in self.arrays_of_rows}
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
    with damaged("the index is damaged", ValueError, file=path, hint=COPY_HINT):
        if batch.schema != SCHEMA or len(batch) != rows:
            raise ValueError(f"{len(batch)} rows with {batch.schema.names}, but {rows} in the manifest")
        index = RegionIndex(batch.column("image_id"), batch.column("regions").to_numpy())
    return index

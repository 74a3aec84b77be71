# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One row of a region table, the regions of an image: checks, digest, and layout in Arrow."""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if

# What Arrow raises at a damaged file. It checks offsets and sizes itself, and `validate(full=True)` the rest.
ARROW_ERRORS = (pa.ArrowException, ValueError, EOFError, OSError, MemoryError, TypeError, AttributeError, SystemError)

# Of the flatbuffer of a message (`Message.fbs`), whose layout Arrow has verified: the header, and its compression.
_HEADER, _COMPRESSION = 2, 3

# Detectors that count pixels from 0 to w (not w - 1) place box edges up to one pixel outside the image.
EDGE_TOLERANCE = 1.0
DIGEST_SIZE = 16
# Arrow's writers pad each buffer of a message to a multiple of this many bytes.
_ALIGNMENT = 8
_INTEGER, _LONG = struct.Struct("<i"), struct.Struct("<q")
_OFFSETS = struct.Struct("<ii")  # of a list or string column with one element: 0 and its length
_HEAD_BYTES = 3 * _ALIGNMENT + DIGEST_SIZE  # width, height, source row, checksum
# Arrays of a row: dtype and whether it is a matrix (one vector a region) or a vector (one number a region).
ARRAYS: dict[str, tuple[np.dtype, bool]] = {
    "boxes": (np.dtype(np.float32), True),
    "features": (np.dtype(np.float16), True),
    "classes": (np.dtype(np.int32), False),
    "scores": (np.dtype(np.float32), False),
    "attributes": (np.dtype(np.int32), False),
    "attribute_scores": (np.dtype(np.float32), False),
    "class_probs": (np.dtype(np.float16), True),
}
# Columns of a row before the arrays.
HEAD = {
    "image_id": pa.string(),
    "width": pa.int32(),
    "height": pa.int32(),
    "source_row": pa.int64(),
    "checksum": pa.binary(DIGEST_SIZE),
}


def read_batch(message: pa.Message, schema: pa.Schema) -> pa.RecordBatch:
    """The record batch of a message; a ValueError if it is compressed: few bytes could then fill the memory."""
    metadata = message.metadata.to_pybytes()
    root = int.from_bytes(metadata[:4], "little")
    header = root + _field(metadata, root, _HEADER)
    if message.type == "record batch" and _field(
        metadata, header + int.from_bytes(metadata[header : header + 4], "little"), _COMPRESSION
    ):
        raise ValueError("compressed rows, expected plain ones")
    return pa.ipc.read_record_batch(message, schema)


def _field(metadata: bytes, table: int, number: int) -> int:
    """Where a field of a table of a flatbuffer is, from the start of the table; 0 if it is not there."""
    layout = table - _INTEGER.unpack_from(metadata, table)[0]
    size, slot = int.from_bytes(metadata[layout : layout + 2], "little"), 4 + 2 * number
    return int.from_bytes(metadata[layout + slot : layout + slot + 2], "little") if slot < size else 0


@dataclass(slots=True, eq=False)
class Regions:
    """The regions that a detector found in one image; n regions, D feature values, C classes."""

    image_id: str
    width: int
    height: int
    boxes: npt.NDArray[np.float32]
    features: npt.NDArray[np.float16]
    classes: npt.NDArray[np.int32] | None = None
    scores: npt.NDArray[np.float32] | None = None
    attributes: npt.NDArray[np.int32] | None = None
    attribute_scores: npt.NDArray[np.float32] | None = None
    class_probs: npt.NDArray[np.float16] | None = None
    provenance: Mapping[str, Any] | None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.boxes)

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays that are present, by name."""
        return {name: array for name in ARRAYS if (array := getattr(self, name)) is not None}


def normalise_boxes(boxes: npt.ArrayLike, width: int, height: int) -> npt.NDArray[np.float32]:
    """Divides pixel boxes by the size of the image.

    A coordinate up to one pixel outside the image is moved to its edge, since detectors produce such boxes at the
    border.
    """
    pixels = np.asarray(boxes, dtype=np.float32)
    check_size(width, height)
    size = np.array([width, height, width, height], dtype=np.float32)
    check_boxes(pixels, size, EDGE_TOLERANCE)
    if pixels.size and pixels.max() <= 1.001 and min(width, height) > 2:
        found = f"numbers up to {pixels.max():g} in an image of {width} x {height}"
        raise DataError("the boxes look normalised", found=found, expected="x1, y1, x2, y2 in pixels")
    return np.clip(pixels, 0, size) / size


def check_size(width: int, height: int) -> None:
    """Checks the size of an image."""
    if width < 1 or height < 1:
        raise DataError("image size is not positive", found=(width, height), expected="width and height above 0")
    if max(width, height) > np.iinfo(np.int32).max:
        raise DataError("image size is too large", found=(width, height), expected="width and height below 2147483648")


def check_boxes(boxes: np.ndarray, limit: np.ndarray | float, tolerance: float = 0.0) -> None:
    """Checks boxes."""
    if boxes.ndim != 2 or boxes.shape[1] != 4 or not len(boxes):
        raise DataError("boxes have a wrong shape", found=boxes.shape, expected="(number of regions, 4), at least one")
    checks = {
        "box is not a number": ~np.isfinite(boxes).all(axis=1),
        "box outside the image": ((boxes < -tolerance) | (boxes > np.asarray(limit) + tolerance)).any(axis=1),
        "box inverted": (boxes[:, :2] > boxes[:, 2:]).any(axis=1),
    }
    for problem, bad in checks.items():
        if bad.any():
            region = int(bad.argmax())
            edge = np.broadcast_to(limit, 4).tolist()[2:]
            expected = f"0 <= x1 <= x2 <= {edge[0]:g}, 0 <= y1 <= y2 <= {edge[1]:g}"
            raise DataError(problem, where=f"region {region}", found=boxes[region].tolist(), expected=expected)


def validate_regions(regions: Regions) -> Regions:
    """Checks regions and converts their arrays to contiguous ones with the dtypes of `Regions`."""
    if not isinstance(regions.image_id, str) or not regions.image_id:
        raise DataError("image id is not a text", found=regions.image_id, expected="a string that is not empty")
    check_size(regions.width, regions.height)
    arrays = regions.arrays()
    converted = {name: _convert(name, array, len(arrays["boxes"])) for name, array in arrays.items()}
    check_boxes(converted["boxes"], 1.0)
    return Regions(regions.image_id, int(regions.width), int(regions.height), **converted)


def _convert(name: str, array: np.ndarray, count: int) -> np.ndarray:
    dtype, is_matrix = ARRAYS[name]
    array = np.asarray(array)
    if array.ndim != 1 + is_matrix or len(array) != count or not array.size:
        shape = f"({count}, width)" if is_matrix else f"({count},)"
        raise DataError(f"{name} have a wrong shape", found=array.shape, expected=f"{shape}, one entry a box")
    if dtype.kind == "i" and (array.min() < 0 or array.max() > np.iinfo(dtype).max):
        raise DataError(f"{name} out of range", found=(array.min().item(), array.max().item()), expected="0 or more")
    with np.errstate(over="ignore"):
        result = np.ascontiguousarray(array, dtype=dtype)
    if dtype.kind == "f" and not _is_finite(result):
        region, *_ = np.argwhere(~np.isfinite(result))[0]
        found = np.ravel(array[region])[~np.isfinite(np.ravel(result[region]))][0].item()
        raise DataError(
            f"{name} contain a value that {dtype.name} cannot represent", where=f"region {region}", found=found
        )
    return result


def _is_finite(array: np.ndarray) -> bool:
    if array.dtype != np.float16:
        return bool(np.isfinite(array).all())
    # NumPy converts float16 for each test; testing for all exponent bits is equivalent and ten times faster.
    return not bool(((array.view(np.uint16) & 0x7C00) == 0x7C00).any())


def row_digest(regions: Regions) -> bytes:
    """Computes BLAKE2b (16 bytes) of id, size, and each array with its name and shape: the content, not its layout."""
    digest = hashlib.blake2b(digest_size=DIGEST_SIZE)
    digest.update(f"{regions.image_id}\0{regions.width}x{regions.height}".encode())
    for name, array in regions.arrays().items():
        digest.update(f"\0{name}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()


def row_widths(regions: Regions) -> dict[str, int | None]:
    """Returns the width of each array that is present: D for features, None for a vector."""
    return {name: array.shape[1] if array.ndim == 2 else None for name, array in regions.arrays().items()}


def row_schema(widths: dict[str, int | None]) -> pa.Schema:
    """Returns the Arrow schema of a table whose rows have these arrays with these widths."""
    columns = [pa.field(name, dtype, nullable=False) for name, dtype in HEAD.items()]
    for name, width in widths.items():
        dtype = pa.from_numpy_dtype(ARRAYS[name][0])
        columns.append(pa.field(name, pa.list_(dtype if width is None else pa.list_(dtype, width))))
    return pa.schema(columns)


def read_schema(stream: pa.NativeFile) -> pa.Schema:
    """Reads the schema at the start of a shard."""
    try:
        schema = pa.ipc.read_schema(stream)
        if schema == row_schema(schema_widths(schema)):
            return schema
    except ARROW_ERRORS as error:
        raise DataError("damaged header", found=str(error)) from error
    raise DataError("not a shard of a region table", found=schema.names)


def schema_widths(schema: pa.Schema) -> dict[str, int | None]:
    """Returns the `row_widths` of the rows with this schema."""
    types = {name: schema.field(name).type.value_type for name in schema.names if name in ARRAYS}
    return {name: dtype.list_size if pa.types.is_fixed_size_list(dtype) else None for name, dtype in types.items()}


def encode_row(regions: Regions, schema: pa.Schema, source_row: int, digest: bytes) -> pa.RecordBatch:
    """Makes a record batch of one row."""
    text = regions.image_id.encode()
    numbers = (_INTEGER.pack(regions.width), _INTEGER.pack(regions.height), _LONG.pack(source_row), digest)
    head = [(_OFFSETS.pack(0, len(text)), text), *((number,) for number in numbers)]
    # From buffers: `pa.array` on a list of one value takes several times as long.
    columns = [_one_value(dtype, *buffers) for dtype, buffers in zip(HEAD.values(), head, strict=True)]
    for array in regions.arrays().values():
        values = pa.array(array.reshape(-1))
        if array.ndim == 2:
            values = pa.FixedSizeListArray.from_arrays(values, array.shape[1])
        columns.append(pa.ListArray.from_arrays(pa.array([0, len(array)], pa.int32()), values))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _one_value(dtype: pa.DataType, *buffers: bytes) -> pa.Array:
    return pa.Array.from_buffers(dtype, 1, [None, *map(pa.py_buffer, buffers)])


def _padded(sizes: Any) -> Any:
    """Rounds a number of bytes, or an array of them, up to Arrow's alignment."""
    return -(-sizes // _ALIGNMENT) * _ALIGNMENT


class RowDecoder:
    """Decodes record batches of one row into `Regions`; its arrays are read-only views, without a copy."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._arrays = [
            (schema.get_field_index(name), name, ARRAYS[name][0], width)
            for name, width in schema_widths(schema).items()
        ]

    def decode(self, message: pa.Buffer) -> Regions:
        """Decodes the regions of an encapsulated IPC message that holds a record batch of one row."""
        data = memoryview(message)
        try:
            regions = self._read_layout(data)
        except (struct.error, ValueError):
            regions = None
        return regions or self._read_message(message)[0]

    def _read_layout(self, message: memoryview) -> Regions | None:
        """Decodes a row by the offsets at which Arrow's writer puts its buffers, without reading the metadata."""
        # A marker, the length of the metadata, the metadata, the buffers. Absent validity bitmaps take no space.
        place = 8 + _INTEGER.unpack_from(message, 4)[0]
        id_end = _OFFSETS.unpack_from(message, place)[1]
        place += _OFFSETS.size
        image_id = str(message[place : place + id_end], "utf-8")
        place += _padded(id_end)
        width, height = (_INTEGER.unpack_from(message, place + shift)[0] for shift in (0, _ALIGNMENT))
        place += _HEAD_BYTES
        arrays, rows = {}, 0
        for _, name, dtype, columns in self._arrays:
            count = _OFFSETS.unpack_from(message, place)[1]
            if count < 1 or count != (rows or count):
                return None
            rows = count
            place += _OFFSETS.size
            flat = np.frombuffer(message, dtype, count * (columns or 1), place)
            place += _padded(flat.nbytes)
            arrays[name] = flat if columns is None else flat.reshape(count, columns)
        whole = place == len(message) and width > 0 and height > 0
        return Regions(image_id, width, height, **arrays) if whole else None

    def verified(self, message: pa.Buffer) -> tuple[Regions, int, bytes]:
        """Decodes a row and checks its digest."""
        regions, source_row, digest = self._read_message(message)
        refuse_if(row_digest(regions) != digest, "damaged row: its content does not match its checksum")
        return regions, source_row, digest

    def count_regions(
        self, lengths: npt.NDArray[np.int64], id_lengths: npt.NDArray[np.int64], example: tuple[int, int, int]
    ) -> npt.NDArray[np.int64]:
        """Computes the number of regions of rows from their lengths alone."""
        length, id_length, count = example
        # All other bytes are the same in every row: the same schema, the same metadata.
        fixed = length - _padded(id_length) - self._array_bytes(np.array([count]))[0]
        available = lengths - fixed - _padded(id_lengths)
        counts = available // sum(dtype.itemsize * (width or 1) for *_, dtype, width in self._arrays)
        while (too_many := (counts > 0) & (self._array_bytes(counts) > available)).any():
            counts[too_many] -= 1
        return np.where((counts > 0) & (self._array_bytes(counts) == available), counts, -1)

    def _array_bytes(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        sizes = (_padded(counts * dtype.itemsize * (width or 1)) for *_, dtype, width in self._arrays)
        return np.sum(list(sizes), axis=0)

    def _read_message(self, message: pa.Buffer) -> tuple[Regions, int, bytes]:
        """Decodes regions, source row and digest with Arrow, which checks the metadata and every buffer."""
        try:
            batch = read_batch(pa.ipc.read_message(message), self.schema)
            batch.validate(full=True)
            if batch.num_rows != 1 or any(column.null_count for column in batch.columns):
                raise ValueError("not a message with one whole row")
            image_id, width, height, source_row, digest = (batch.column(place)[0].as_py() for place in range(5))
            arrays: dict[str, Any] = {}
            for place, name, _, columns in self._arrays:
                values = batch.column(place).flatten()
                flat = values if columns is None else values.flatten()
                if not len(values) or len(values) != len(arrays.get("boxes", values)) or flat.null_count:
                    raise ValueError(f"{len(values)} {name}")
                array = flat.to_numpy()
                arrays[name] = array if columns is None else array.reshape(-1, columns)
            check_size(width, height)
        except ARROW_ERRORS as error:
            raise DataError("damaged row", found=str(error)[:200]) from error
        return Regions(image_id, width, height, **arrays), source_row, digest

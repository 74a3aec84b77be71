# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The layout of Arrow IPC messages, read with a check of every offset and size.

Arrow's C++ reader may abort the interpreter at a damaged message. This module finds the buffers of a record batch
without it. Format: the columnar format's "Encapsulated message format" and `Message.fbs`, a flatbuffer.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

CONTINUATION = b"\xff\xff\xff\xff"
SCHEMA, RECORD_BATCH = 1, 3  # kinds of messages (`MessageHeader`)
_SHORT, _UNSIGNED_SHORT, _BYTE = struct.Struct("<h"), struct.Struct("<H"), struct.Struct("<B")
_INTEGER, _UNSIGNED, _LONG, _PAIR = struct.Struct("<i"), struct.Struct("<I"), struct.Struct("<q"), struct.Struct("<qq")


class LayoutError(ValueError):
    """An offset or a size of a message is impossible."""


@dataclass(frozen=True, slots=True)
class Message:
    """An encapsulated message."""

    kind: int
    start: int
    body: int
    end: int
    header: int
    metadata: memoryview

    def rows(self) -> int:
        """Returns the number of rows of a record batch."""
        return _field(self.metadata, self.header, 0, _LONG) or 0

    @property
    def compressed(self) -> bool:
        """Whether the buffers of a record batch are compressed."""
        return _place(self.metadata, self.header, 3) is not None

    def buffers(self) -> list[tuple[int, int]]:
        """Returns place in the data and length of each buffer of a record batch."""
        if self.compressed:
            raise LayoutError("a compressed record batch")
        found = []
        for offset, length in _pairs(self.metadata, self.header, 2):
            if offset < 0 or length < 0 or self.body + offset + length > self.end:
                raise LayoutError(f"a buffer of {length} bytes at {offset} in a body of {self.end - self.body} bytes")
            found.append((self.body + offset, length))
        return found

    def nodes(self) -> list[tuple[int, int]]:
        """Returns length and number of nulls of each array of a record batch."""
        return _pairs(self.metadata, self.header, 1)


class Columns:
    """Reads the buffers of a record batch without nulls, one after another, in the order of its columns."""

    def __init__(self, data: memoryview, message: Message) -> None:
        self.data = data
        self._buffers = iter(message.buffers())
        if any(nulls for _, nulls in message.nodes()):
            raise LayoutError("missing values")

    def skip_validity(self) -> None:
        """Skips the bitmap of a column without nulls."""
        self._next()

    def numbers(self, dtype: np.dtype, count: int) -> np.ndarray:
        """Reads a column of `count` numbers, or the offsets of a list: its bitmap, then its values."""
        self.skip_validity()
        place, length = self._next()
        if count < 0 or length < count * dtype.itemsize:
            raise LayoutError(f"{length} bytes for {count} values of {dtype}")
        return np.frombuffer(self.data, dtype, count, place)

    def texts(self, count: int) -> list[str]:
        """Reads a column of `count` texts."""
        offsets, buffer = self.text_buffers(count)
        content, ends = bytes(buffer), offsets.tolist()
        return [content[first:last].decode("utf-8") for first, last in pairwise(ends)]

    def text_buffers(self, count: int) -> tuple[npt.NDArray[np.int32], memoryview]:
        """Finds a column of `count` texts: where each begins and the last ends, (count + 1,) int32, and the bytes."""
        if count < 0:
            raise LayoutError(f"{count} texts")
        offsets: npt.NDArray[np.int32] = self.numbers(np.dtype(np.int32), count + 1)
        place, length = self._next()
        if offsets[0] < 0 or offsets[-1] > length or (offsets[1:] < offsets[:-1]).any():
            raise LayoutError(f"offsets of texts up to {offsets.max()} in {length} bytes")
        return offsets, self.data[place : place + length]

    def _next(self) -> tuple[int, int]:
        buffer = next(self._buffers, None)
        if buffer is None:
            raise LayoutError("too few buffers")
        return buffer


def read_message(data: memoryview, start: int = 0) -> Message | None:
    """Finds the parts of the message at `start`."""
    try:
        if bytes(data[start : start + 4]) != CONTINUATION:
            raise LayoutError(f"no mark of a message at byte {start}")
        length = _INTEGER.unpack_from(data, start + 4)[0]
        if not length:
            return None
        body = start + 8 + length
        if length < 8 or length % 8 or body > len(data):
            raise LayoutError(f"metadata of {length} bytes at byte {start} of {len(data)}")
        metadata = data[start + 8 : body]
        table = _UNSIGNED.unpack_from(metadata, 0)[0]
        size = _field(metadata, table, 3, _LONG) or 0
        header = _reference(metadata, table, 2)
        if size < 0 or size > len(data) - body or header is None:
            raise LayoutError(f"a body of {size} bytes at byte {body} of {len(data)}")
        kind = _field(metadata, table, 1, _BYTE) or 0
        return Message(kind, start, body, body + size, header, metadata)
    except struct.error as error:
        raise LayoutError(str(error)) from error


def messages(data: memoryview, start: int = 0) -> Iterator[Message]:
    """Yields the messages of a stream up to its end."""
    while start < len(data):
        message = read_message(data, start)
        if message is None:
            return
        yield message
        start = message.end


def _place(metadata: memoryview, table: int, number: int) -> int | None:
    """The place of field `number` of a table; None if the field is absent."""
    _check(metadata, table, 4)
    names = table - _INTEGER.unpack_from(metadata, table)[0]
    _check(metadata, names, 4)
    entry = 4 + 2 * number
    if entry + 2 > _UNSIGNED_SHORT.unpack_from(metadata, names)[0]:
        return None
    _check(metadata, names + entry, 2)
    offset = _UNSIGNED_SHORT.unpack_from(metadata, names + entry)[0]
    return table + offset if offset else None


def _field(metadata: memoryview, table: int, number: int, kind: struct.Struct) -> int | None:
    place = _place(metadata, table, number)
    if place is None:
        return None
    _check(metadata, place, kind.size)
    return kind.unpack_from(metadata, place)[0]


def _reference(metadata: memoryview, table: int, number: int) -> int | None:
    """The place that field `number` refers to."""
    place = _place(metadata, table, number)
    if place is None:
        return None
    target = place + (_field(metadata, table, number, _UNSIGNED) or 0)
    _check(metadata, target, 4)
    return target


def _pairs(metadata: memoryview, table: int, number: int) -> list[tuple[int, int]]:
    """The vector of pairs of 64-bit integers in field `number`."""
    place = _reference(metadata, table, number)
    if place is None:
        return []
    count = _UNSIGNED.unpack_from(metadata, place)[0]
    _check(metadata, place + 4, count * _PAIR.size)
    return [_PAIR.unpack_from(metadata, place + 4 + index * _PAIR.size) for index in range(count)]


def _check(metadata: memoryview, place: int, size: int) -> None:
    if not 0 <= place <= len(metadata) - size:
        raise LayoutError(f"{size} bytes at byte {place} of metadata of {len(metadata)} bytes")

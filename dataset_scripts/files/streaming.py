# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Readers for files larger than memory: lines of text, and elements of arrays in a JSON file, one at a time."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from .errors import DataError, MissingFileError

MAX_LINE_BYTES = 16 * 2**20
_CHUNK = 2**20
# An unfinished number, literal or escape is shorter than this. An error farther from the end of the buffer is
# therefore real, and reading on does not solve it.
_SHORT = 32
_WHITESPACE = " \t\n\r"


def text_lines(path: Path, hint: str) -> Iterator[tuple[int, str]]:
    """Reads the lines of a UTF-8 file, one in memory at a time.

    Only a line feed ends a line. A byte order mark at the start of the file is skipped.

    Args:
        path (`Path`): The file.
        hint (`str`): Where to get the file, for errors.

    Yields:
        `tuple[int, str]`: The number of the line, from 1, and the line without its end (LF or CRLF).

    Raises:
        MissingFileError: The file does not exist.
        DataError: A line is not UTF-8, or is longer than 16 MiB; the message names the line.
    """
    with _open(path, hint) as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                expected = f"at most {MAX_LINE_BYTES} bytes"
                raise DataError(
                    "the line is too long", file=path, where=f"line {number}", expected=expected, hint=hint
                )
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                found = line[error.start : error.end]
                where = f"line {number}"
                raise DataError("not valid UTF-8", file=path, where=where, found=found, hint=hint) from None
            yield number, text.removesuffix("\n").removesuffix("\r")


def json_elements(path: Path, hint: str) -> Iterator[tuple[str | None, int, Any]]:
    """Reads the elements of the arrays of a JSON file, one in memory at a time.

    The file holds an array or an object. Of an object, the elements of all members that are arrays are read; other
    members are checked and skipped.

    Args:
        path (`Path`): The file, UTF-8.
        hint (`str`): Where to get the file, for errors.

    Yields:
        `tuple[str | None, int, Any]`: Name of the member (None if the file is an array), index of the element in its
        array from 0, and the element.

    Raises:
        MissingFileError: The file does not exist.
        DataError: The file is cut, is not JSON, or holds neither an array nor an object.
    """
    with _open(path, hint) as binary, io.TextIOWrapper(binary, encoding="utf-8-sig") as file:
        stream = _JsonStream(file, path, hint)
        start = stream.peek()
        if start == "[":
            for index, element in enumerate(stream.array("")):
                yield None, index, element
        elif start == "{":
            yield from stream.members()
        else:
            stream.fail("not a list or an object", expected="JSON")
        if stream.peek():
            stream.fail("unexpected content after the end", expected="nothing")


def json_members(path: Path, hint: str) -> Iterator[tuple[str, Any]]:
    """Reads the members of a JSON file that holds one object, one in memory at a time.

    Args:
        path (`Path`): The file, UTF-8.
        hint (`str`): Where to get the file, for errors.

    Yields:
        `tuple[str, Any]`: Name and value of a member.

    Raises:
        MissingFileError: The file does not exist.
        DataError: The file is cut, is not JSON, holds no object, or a name occurs twice.
    """
    with _open(path, hint) as binary, io.TextIOWrapper(binary, encoding="utf-8-sig") as file:
        stream = _JsonStream(file, path, hint)
        if stream.peek() != "{":
            stream.fail("not an object", expected="a JSON object")
        for name in stream.names():
            stream.place = f"member {name!r}"
            yield name, stream.value()
            stream.place = ""
        if stream.peek():
            stream.fail("unexpected content after the end", expected="nothing")


class _JsonStream:
    """A JSON text of which one piece is in memory."""

    def __init__(self, file: IO[str], path: Path, hint: str) -> None:
        self.file, self.path, self.hint = file, path, hint
        self.buffer, self.position, self.ended = "", 0, False
        self.place = ""
        self._decode = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode

    def peek(self) -> str:
        """Returns the next character that is not white space, or an empty text at the end of the file."""
        while True:
            while self.position < len(self.buffer):
                if (character := self.buffer[self.position]) not in _WHITESPACE:
                    return character
                self.position += 1
            if not self._read():
                return ""

    def members(self) -> Iterator[tuple[str, int, Any]]:
        """Yields the elements of the arrays of an object that begins here."""
        for name in self.names():
            if self.peek() == "[":
                for index, element in enumerate(self.array(f"{name} ")):
                    yield name, index, element
            else:
                self.value()

    def names(self) -> Iterator[str]:
        """Yields the names of an object that begins here; the caller reads the value after each name."""
        self.take("{")
        seen: set[str] = set()
        while self.peek() != "}":
            if seen:
                self.take(",")
            name = self.value()
            if not isinstance(name, str) or name in seen:
                self.fail("not the name of a member, or a repeated name", expected="a new name")
            seen.add(name)
            self.take(":")
            yield name
        self.take("}")

    def array(self, name: str) -> Iterator[Any]:
        """Yields the elements of an array that begins here."""
        self.take("[")
        count = 0
        while self.peek() != "]":
            if count:
                self.take(",")
            self.place = f"{name}element {count + 1}"
            yield self.value()
            count += 1
        self.place = ""
        self.take("]")

    def take(self, character: str) -> None:
        """Skips a character that has to be next."""
        if self.peek() != character:
            self.fail("not JSON", expected=character)
        self.position += 1

    def value(self) -> Any:
        """Decodes the value that begins here and reads on as far as needed."""
        self.peek()
        while True:
            try:
                value, end = self._decode(self.buffer, self.position)
            except json.JSONDecodeError as error:
                in_string = error.msg.startswith("Unterminated string")
                if self.ended or not (in_string or len(self.buffer) - error.pos < _SHORT):
                    self.position = len(self.buffer) if in_string else error.pos
                    self.fail(error.msg)
            except (RecursionError, _ConstantError) as error:
                self.fail(str(error))
            else:
                # A number near the end of the buffer may go on.
                if len(self.buffer) - end >= _SHORT or self.ended:
                    self.position = end
                    return value
            self._read()

    def fail(self, problem: str, expected: str | None = None) -> None:
        """Raises an error with the current place.

        Args:
            problem (`str`): The problem in a few words.
            expected (`str`, *optional*): The text expected here.

        Raises:
            DataError: Always.
        """
        found = self.buffer[self.position : self.position + 40]
        if not found.strip():
            problem = f"the file ends too early ({problem})"
        raise DataError(
            problem, file=self.path, where=self.place or None, found=found or None, expected=expected, hint=self.hint
        )

    def _read(self) -> bool:
        """Reads on; returns False at the end of the file.

        A long value takes larger and larger pieces, so its cost stays linear.
        """
        rest = self.buffer[self.position :]
        try:
            piece = self.file.read(max(_CHUNK, len(rest)))
        except UnicodeDecodeError as error:
            found = error.object[error.start : error.end]
            where = self.place or None
            raise DataError("not valid UTF-8", file=self.path, where=where, found=found, hint=self.hint) from None
        self.buffer, self.position, self.ended = rest + piece, 0, not piece
        return bool(piece)


class _ConstantError(ValueError):
    """NaN or infinity, which JSON does not have."""


def _refuse_constant(name: str) -> None:
    raise _ConstantError(f"{name} is not JSON")


def _open(path: Path, hint: str) -> IO[bytes]:
    if not path.is_file():
        raise MissingFileError("the file is missing", file=path, hint=hint)
    return open(path, "rb")

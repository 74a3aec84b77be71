# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Readers for files larger than memory: lines of text, and elements of arrays in a JSON file, one at a time."""

import io
import json
import logging
import math
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NoReturn

from grounded_attention.utils.bounded_files import open_data
from grounded_attention.utils.plain_text import has_surrogates

from .errors import DataError, MissingFileError

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 16 * 2**20
_CHUNK = 2**20
# An unfinished number, literal or escape is shorter than this. An error farther from the end of the buffer is
# therefore real, and reading on does not solve it.
_SHORT = 32
_SPACE = re.compile(r"[ \t\n\r]*")


def text_lines(path: Path, hint: str) -> Iterator[tuple[int, str]]:
    """Reads the lines of a UTF-8 file, one in memory at a time.

    Only a line feed ends a line. A byte order mark at the start of the file is skipped. A last line without a line
    feed is read, with one warning, however often it is read: most tools end it, so the file may be cut.
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
            if "\0" in text:
                problem = "a NUL byte, so the file is damaged or no text"
                raise DataError(problem, file=path, where=f"line {number}", hint=hint)
            if not text.endswith("\n"):
                _say_cut(path.absolute(), number)
            yield number, text.removesuffix("\n").removesuffix("\r")


@lru_cache(maxsize=1024)
def _say_cut(path: Path, number: int) -> None:
    """Says that the last line of a file has no end, once: rows are read several times."""
    logger.warning("%s: line %d has no end, so the file may be cut", path, number)


def json_elements(path: Path, hint: str) -> Iterator[tuple[str | None, int, Any]]:
    """Reads the elements of the arrays of a JSON file, one in memory at a time.

    The file holds an array or an object. Of an object, the elements of all members that are arrays are read; other
    members are checked and skipped.
    """
    with _open(path, hint) as file:
        stream = _JsonStream(file, path, hint)
        start = stream.peek()
        if start == "[":
            for index, element in enumerate(stream.array("")):
                yield None, index, element
        elif start == "{":
            for name in stream.names():
                if stream.peek() != "[":
                    stream.value()
                    continue
                for index, element in enumerate(stream.array(f"{name} ")):
                    yield name, index, element
        else:
            stream.fail("not a list or an object", expected="JSON")
        if stream.peek():
            stream.fail("unexpected content after the end", expected="nothing")


def json_members(path: Path, hint: str) -> Iterator[tuple[str, Any]]:
    """Reads the members of a JSON file that holds one object, one in memory at a time."""
    with _open(path, hint) as file:
        stream = _JsonStream(file, path, hint)
        for name in stream.names():
            yield name, stream.value()
        if stream.peek():
            stream.fail("unexpected content after the end", expected="nothing")


class _JsonStream:
    """A JSON text of which one piece is in memory."""

    def __init__(self, file: IO[bytes], path: Path, hint: str) -> None:
        self.file = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        self.path = path
        self.hint = hint
        self.buffer = ""
        self.position = 0
        self.ended = False
        self.place = ""
        self._decode = json.JSONDecoder(parse_float=_parse_float, parse_constant=_refuse_constant).raw_decode

    def peek(self) -> str:
        """Returns the next character that is not white space, or an empty text at the end of the file."""
        while True:
            self.position = _SPACE.match(self.buffer, self.position).end()  # type: ignore[union-attr]
            if self.position < len(self.buffer) or self.ended:
                return self.buffer[self.position : self.position + 1]
            self._read()

    def names(self) -> Iterator[str]:
        """Yields the names of an object that begins here; the caller reads the value after each name."""
        self.take("{")
        earlier: set[str] = set()
        while self.peek() != "}":
            if earlier:
                self.take(",")
            name = self.value()
            if not isinstance(name, str) or name in earlier:
                self.fail("not the name of a member, or a repeated name", expected="a new name")
            self.place = f"member {name!r}"
            if has_surrogates(name):
                self.fail("bad name of a member", expected="a text without unpaired surrogates")
            earlier.add(name)
            self.take(":")
            yield name
            self.place = ""
        self.take("}")

    def array(self, name: str) -> Iterator[Any]:
        """Yields the elements of an array that begins here."""
        self.take("[")
        count = 0
        while self.peek() != "]":
            if count:
                self.take(",")
            count += 1
            self.place = f"{name}element {count}"
            yield self.value()
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
                unfinished = error.msg.startswith("Unterminated string") or len(self.buffer) - error.pos < _SHORT
                if self.ended or not unfinished:
                    if error.msg.startswith("Unterminated"):
                        self.position = len(self.buffer)
                    else:
                        self.position = error.pos
                    self.fail(error.msg)
            except RecursionError:
                self.fail("nested too deeply")
            except ValueError as error:  # NaN, infinity, or a number with too many digits
                self.fail(str(error).split(";")[0])
            else:
                # A number near the end of the buffer may go on.
                if len(self.buffer) - end >= _SHORT or self.ended or not isinstance(value, int | float):
                    self.position = end
                    return value
            self._read()

    def fail(self, problem: str, expected: str | None = None) -> NoReturn:
        """Raises an error with the current place."""
        found = self.buffer[self.position : self.position + 40]
        if not found.strip():
            problem = f"the file ends too early ({problem})"
        raise DataError(
            problem, file=self.path, where=self.place or None, found=found or None, expected=expected, hint=self.hint
        )

    def _read(self) -> None:
        """Reads on."""
        rest = self.buffer[self.position :]
        try:
            piece = self.file.read(max(_CHUNK, len(rest)))
        except UnicodeDecodeError as error:
            byte = self.file.buffer.tell() - len(error.object) + error.start
            raise DataError("not valid UTF-8", file=self.path, where=f"byte {byte}", hint=self.hint) from None
        self.buffer = rest + piece
        self.position = 0
        self.ended = not piece


def _parse_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:20]} is too large for a number")
    return number


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _open(path: Path, hint: str) -> IO[bytes]:
    if not path.exists():
        raise MissingFileError("the file is missing", file=path, hint=hint)
    return open_data(path)

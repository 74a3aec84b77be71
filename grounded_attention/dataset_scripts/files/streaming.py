# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Readers for files larger than memory: lines of text, and elements of arrays in a JSON file, one at a time."""

import codecs
import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from grounded_attention.utils.bounded_files import open_data
from grounded_attention.utils.plain_text import has_surrogates

from .errors import DataError, MissingFileError

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 16 * 2**20
_CHUNK = 2**20
# An unfinished number, literal or escape is shorter than this. An error farther from the end of the buffer is
# therefore real, and reading on does not solve it.
_SHORT = 32
_WHITESPACE = " \t\n\r"


def text_lines(path: Path, hint: str) -> Iterator[tuple[int, str]]:
    """Reads the lines of a UTF-8 file, one in memory at a time.

    Only a line feed ends a line. A byte order mark at the start of the file is skipped. A last line without a line
    feed is read, with a warning: most tools end it, so the file may be cut.
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
                logger.warning("%s: line %d has no end, so the file may be cut", path, number)
            yield number, text.removesuffix("\n").removesuffix("\r")


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
            yield from stream.members()
        else:
            stream.fail("not a list or an object", expected="JSON")
        if stream.peek():
            stream.fail("unexpected content after the end", expected="nothing")


def json_members(path: Path, hint: str) -> Iterator[tuple[str, Any]]:
    """Reads the members of a JSON file that holds one object, one in memory at a time."""
    with _open(path, hint) as file:
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

    def __init__(self, file: IO[bytes], path: Path, hint: str) -> None:
        self.file, self.path, self.hint = file, path, hint
        self.buffer, self.position, self.ended = "", 0, False
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._begun = False
        self._bad: DataError | None = None  # a byte that is not UTF-8, behind the text in the buffer
        self.place = ""
        self._decode = json.JSONDecoder(parse_float=_parse_float, parse_constant=_refuse_constant).raw_decode

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
            if has_surrogates(name):
                self.place = f"member {name!r}"
                self.fail("bad name of a member", expected="a text without unpaired surrogates")
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

    def fail(self, problem: str, expected: str | None = None) -> None:
        """Raises an error with the current place."""
        found = self.buffer[self.position : self.position + 40]
        if not found.strip():
            problem = f"the file ends too early ({problem})"
        raise DataError(
            problem, file=self.path, where=self.place or None, found=found or None, expected=expected, hint=self.hint
        )

    def _read(self) -> bool:
        """Reads on; returns False at the end of the file."""
        rest = self.buffer[self.position :]
        if self._bad is not None:
            where = ", ".join(filter(None, (self.place, str(self._bad))))
            raise DataError("not valid UTF-8", file=self.path, where=where, hint=self.hint)
        content = self.file.read(max(_CHUNK, len(rest)))
        try:
            piece = self._decoder.decode(content, final=not content)
        except UnicodeDecodeError as error:
            # The text before the bad byte is still parsed, so that the error names the element of the byte.
            piece = error.object[: error.start].decode("utf-8-sig" if not self._begun else "utf-8")
            place = self.file.tell() - len(error.object) + error.start
            self._bad = DataError(f"byte {place}", found=error.object[error.start : error.end])
        self._begun = True
        self.buffer, self.position, self.ended = rest + piece, 0, not content and self._bad is None
        return not self.ended


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

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Readers for users' files, also larger than memory: lines of text, and elements of arrays in a JSON file.

They come one at a time, with checked reading of single values; errors name the record.
"""

import io
import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from grounded_attention.utils.bounded_files import open_data, parse_json
from grounded_attention.utils.plain_text import has_surrogates
from grounded_attention.utils.whole_files import write_text

from .errors import DataError, MissingFileError, data_file

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
        self._decode = json.JSONDecoder(parse_float=_parse_float, parse_constant=refuse_constant).raw_decode

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


def refuse_constant(name: str) -> None:
    """Refuses NaN and infinity, which Python reads in JSON."""
    raise ValueError(f"{name} is not JSON")


def _open(path: Path, hint: str) -> IO[bytes]:
    if not path.exists():
        raise MissingFileError("the file is missing", file=path, hint=hint)
    return open_data(path)


TEXT = "a text without unpaired surrogates"
MAX_INT32 = 2**31 - 1
_WRITTEN_BYTES = re.compile(r"""b(["'])(.*)\1""")
MAX_FLOAT32 = (2 - 2**-23) * 2.0**127


@dataclass(frozen=True)
class Record:
    """An object of a JSON file, with its place for errors."""

    values: Any
    file: Path
    where: str
    hint: str | None = None

    def text(self, name: str) -> str:
        """Returns the text in field `name`; it may be empty."""
        value = self._value(name, str, "a text")
        self._check_texts(name, [value])
        return value

    def non_empty_text(self, name: str) -> str:
        """Returns the text in field `name`; it is not empty."""
        value = self.text(name)
        self.refuse_if(not value.strip(), f"bad {name}", found=value, expected="a text that is not empty")
        return value

    def integer(self, *names: str, minimum: int | None = None) -> int:
        """Returns an integer."""
        expected = "a whole number" if minimum is None else f"a whole number from {minimum} of 32 bits"
        name = self._first(names)
        value = self._value(name, int, expected)
        if minimum is not None and not minimum <= value <= MAX_INT32:
            raise self.error(f"impossible {name}", found=value, expected=expected)
        return value

    def number(self, *names: str) -> float:
        """Returns a number."""
        name = self._first(names)
        value = self._value(name, (int, float), "a number")
        self.refuse_if(not _is_finite(value), f"impossible {name}", found=value, expected="a finite number of 32 bits")
        return float(value)

    def box(self, name: str) -> list[float]:
        """Returns the box in field `name`: x, y, width and height, the size not negative."""
        value = self._value(name, list, "a list")
        expected = "x, y, width, height"
        self.refuse_if(not are_numbers(value, 4), f"bad {name}", found=value, expected=expected)
        self.refuse_if(value[2] < 0 or value[3] < 0, "the box has a negative size", found=value, expected=expected)
        return value

    def items(self, name: str) -> list[Any]:
        """Returns the list in field `name`."""
        return self._value(name, list, "a list")

    def records(self, name: str, word: str) -> Iterator["Record"]:
        """Yields the elements of the list in field `name`, each of which an error calls by `word` and its number."""
        for number, element in enumerate(self.items(name), 1):
            yield Record(element, self.file, f"{self.where}, {word} {number}", self.hint)

    def flag(self, name: str) -> bool:
        """Returns the truth value in field `name`."""
        return self._value(name, bool, "true or false")

    def texts(self, name: str) -> list[str]:
        """Returns the list of texts in field `name`."""
        values = self.items(name)
        wrong = [value for value in values if not isinstance(value, str)]
        if wrong:
            raise self.error(f"bad {name}", found=wrong[0], expected="a list of texts")
        self._check_texts(name, values)
        return values

    def names(self) -> list[str]:
        """Returns the names of the fields of an object."""
        self._check_texts("name", self.values)
        return list(self.values)

    def member(self, name: str) -> "Record":
        """Returns the object in field `name`, as a record."""
        value = self._value(name, Mapping, "an object")
        return Record(value, self.file, f"{self.where}, {name}", self.hint)

    def error(self, problem: str, found: object = None, expected: str | None = None) -> DataError:
        """Makes an error about this record."""
        return DataError(problem, file=self.file, where=self.where, found=found, expected=expected, hint=self.hint)

    def refuse_if(self, condition: object, problem: str, found: object = None, expected: str | None = None) -> None:
        """Raises the error of this record if the condition is true."""
        if condition:
            raise self.error(problem, found, expected)

    def add_once(self, value: Any, earlier: set[Any], problem: str, expected: str | None = None) -> None:
        """Adds a value to the earlier ones; one that is there already is an error."""
        self.refuse_if(value in earlier, problem, value, expected)
        earlier.add(value)

    def _check_texts(self, name: str, texts: Iterable[str]) -> None:
        for text in texts:
            self.refuse_if(has_surrogates(text), f"bad {name}", found=text, expected=TEXT)

    def _first(self, names: tuple[str, ...]) -> str:
        there = self.values if isinstance(self.values, Mapping) else {}
        return next((name for name in names if name in there), names[0])

    def _value(self, name: str, kind: Any, expected: str) -> Any:
        if not isinstance(self.values, Mapping):
            raise self.error("not an object", found=self.values, expected=f"an object with {name}")
        if name not in self.values:
            raise self.error(f"{name} is missing", found=sorted(map(str, self.values)), expected=expected)
        value = self.values[name]
        # To Python a bool is an int.
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise self.error(f"bad {name}", found=value, expected=expected)
        return value


def listed(path: Path, hint: str) -> Iterator[Record]:
    """Yields the objects of a JSON file that is one list, such as the predictions of a task."""
    for member, index, element in json_elements(path, hint):
        record = Record(element, path, f"element {index + 1}", hint)
        record.refuse_if(member is not None, "not a list", found=member, expected="a list")
        yield record


def json_lines(path: Path, hint: str, decode: Any = parse_json) -> Iterator[Record]:
    """Yields the records of a file with a JSON object a line; empty lines are skipped."""
    for number, line in text_lines(path, hint):
        if line.strip():
            with data_file(path, hint):
                values = decode(line, f"{path}, line {number}")
            yield Record(values, path, f"line {number}", hint)


def plain(value: Any) -> Any:
    """Returns a value that Python 2, NumPy or pandas wrote as JSON would have it: texts, numbers, lists, objects."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="surrogateescape")
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def id_text(value: Any) -> str:
    """Returns an id that is bytes, written bytes (`b'7'`), a number, or in a list of one; a `DataError` for others."""
    plain_value = plain(list(value) if isinstance(value, tuple) else value)
    while isinstance(plain_value, list) and len(plain_value) == 1:
        plain_value = plain_value[0]
    if isinstance(plain_value, float) and plain_value.is_integer():
        plain_value = int(plain_value)
    if isinstance(plain_value, bool) or not isinstance(plain_value, str | int) or has_surrogates(str(plain_value)):
        raise DataError("not an id", found=value, expected="a text or a whole number")
    written = _WRITTEN_BYTES.fullmatch(text := str(plain_value).strip())
    if written:
        return written[2]
    return text


def are_numbers(values: Any, *lengths: int) -> bool:
    """Whether a value is a list of finite numbers that 32 bits can hold."""
    if not isinstance(values, list) or len(values) not in lengths:
        return False
    return all(isinstance(each, int | float) and not isinstance(each, bool) and _is_finite(each) for each in values)


def _is_finite(number: float) -> bool:
    # Comparing is exact for an integer of any size, which `float` refuses; a comparison with NaN is false.
    return -MAX_FLOAT32 <= number <= MAX_FLOAT32


VQA_NAMES = {"question": "question_id", "answer": "answer"}  # numbers; ids of other rows are texts
GQA_NAMES = {"question": "questionId", "answer": "prediction"}  # texts, also of digits


def write_answer_file(path: Path, answers: Mapping[str, str], question: str, answer: str) -> None:
    """Writes a file of answers for the server of a challenge: a list of objects with a question and its answer."""
    numbers = question == VQA_NAMES["question"]
    rows = []
    for key, text in answers.items():
        rows.append({question: int(key) if numbers and key.isdecimal() else key, answer: text})
    write_text(path, json.dumps(rows))


def read_answer_file(path: Path, question: str, answer: str) -> dict[str, str]:
    """Reads such a file."""
    answers: dict[str, str] = {}
    for record in listed(path, f"predictions are a list of objects with {question} and {answer}"):
        is_text = isinstance(record.values, dict) and isinstance(record.values.get(question), str)
        if is_text:
            key = record.text(question)
        else:
            key = str(record.integer(question))
        record.refuse_if(key in answers, "the question has two answers", found=key)
        answers[key] = record.text(answer)
    return answers

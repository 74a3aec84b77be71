# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checked reading of single values from the records of a user's file; errors name the record."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grounded_attention.utils.bounded_files import parse_json
from grounded_attention.utils.plain_text import has_surrogates
from grounded_attention.utils.whole_files import write_text

from .errors import DataError, data_file
from .streaming import json_elements, text_lines

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

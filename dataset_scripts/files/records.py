# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checked reading of single values in records that came from a user's file, with errors that name the record."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import DataError

MOST = 2**31 - 1  # of what becomes an int32


@dataclass(frozen=True)
class Record:
    """An object of a JSON file, and the words that name its place in errors.

    Args:
        values: The decoded value, an object if the file is right.
        file: The file.
        where: The place in the file, for example `"images, element 3"`.
        hint: What the reader can do about a wrong record.
    """

    values: Any
    file: Path
    where: str
    hint: str | None = None

    def text(self, name: str) -> str:
        """A text, which may be empty."""
        value = self._value(name, str, "a text")
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise self.error(f"bad {name}", found=value, expected="a text without halves of characters")
        return value

    def name(self, name: str) -> str:
        """A text that is not empty."""
        value = self.text(name)
        if not value.strip():
            raise self.error(f"bad {name}", found=value, expected="a text that is not empty")
        return value

    def whole(self, *names: str, least: int | None = None) -> int:
        """A whole number, under the first of these names that is there."""
        expected = "a whole number" if least is None else f"a whole number from {least} of 32 bits"
        name = self._first(names)
        value = self._value(name, int, expected)
        if least is not None and not least <= value <= MOST:
            raise self.error(f"impossible {name}", found=value, expected=expected)
        return value

    def number(self, *names: str) -> float:
        """A number, under the first of these names that is there; JSON as read here has no other than finite ones."""
        value = self._value(self._first(names), (int, float), "a number")
        return float(value)

    def items(self, name: str) -> list[Any]:
        """A list."""
        return self._value(name, list, "a list")

    def error(self, problem: str, found: object = None, expected: str | None = None) -> DataError:
        """An error about this record."""
        return DataError(problem, file=self.file, where=self.where, found=found, expected=expected, hint=self.hint)

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
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.error(f"bad {name}", found=value, expected=expected)
        return value

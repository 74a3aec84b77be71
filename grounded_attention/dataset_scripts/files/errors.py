# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Errors about data files that name the place, the problem and the remedy."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grounded_attention.utils.bounded_files import FileError
from grounded_attention.utils.named_types import AnyPath


class DataError(ValueError):
    """A data file, or one record of it, does not have the expected format.

    The message reads `FILE, WHERE: PROBLEM: found FOUND, expected EXPECTED; HINT`, with the parts that are known.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: AnyPath | None = None,
        where: str | None = None,
        found: object = None,
        expected: str | None = None,
        hint: str | None = None,
    ) -> None:
        place = ", ".join(str(part) for part in (file, where) if part is not None)
        details = []
        if found is not None:
            details.append(f"found {shorten(found)}")
        if expected is not None:
            details.append(f"expected {expected}")
        message = ": ".join(part for part in (place, problem, ", ".join(details)) if part)
        super().__init__(f"{message}; {hint}" if hint else message)


class MissingFileError(DataError, FileNotFoundError):
    """A file that a builder needs is missing; the message states where to get it."""


def refuse_if(condition: object, problem: str, kind: type[DataError] = DataError, **details: Any) -> None:
    """Raises an error of these details if the condition is true."""
    if condition:
        raise kind(problem, **details)


def require_file(file: Path, problem: str = "no such file", **details: Any) -> None:
    """Raises a `MissingFileError` of these details if there is no such file."""
    if not file.is_file():
        raise MissingFileError(problem, file=file, **details)


@contextmanager
def data_file(file: AnyPath, hint: str, missing: str = "the file is missing") -> Iterator[None]:
    """Turns the errors of `bounded_files` about a file into those of data."""
    try:
        yield
    except FileNotFoundError:
        raise MissingFileError(missing, file=file, hint=hint) from None
    except FileError as error:
        raise DataError(str(error), hint=hint) from None
    except RecursionError:
        raise DataError("nested too deeply", file=file, hint=hint) from None


@contextmanager
def damaged(problem: str, *kinds: type[Exception], **details: Any) -> Iterator[None]:
    """Turns errors of these kinds, except a `DataError`, into a `DataError` that has found what they say."""
    try:
        yield
    except kinds as error:
        if isinstance(error, DataError):
            raise
        raise DataError(problem, found=str(error)[:200], **details) from error


@contextmanager
def placed(**place: Any) -> Iterator[None]:
    """Adds file, place or hint to a `DataError` that is raised inside."""
    try:
        yield
    except DataError as error:
        raise DataError(str(error), **place) from error


def check_folder(data_dir: AnyPath | None, hint: str) -> None:
    """Checks the folder of a data set; `hint` says where to get the data."""
    refuse_if(data_dir is None, "data_dir is missing", hint=f"pass the folder as data_dir; {hint}")
    if not os.path.isdir(str(data_dir)):
        raise MissingFileError("the data folder does not exist", file=data_dir, hint=hint)


def shorten(value: object, length: int = 120) -> str:
    """Returns `repr(value)`, shortened in the middle."""
    try:
        text = repr(value)
    except RecursionError:
        text = f"a {type(value).__name__} that is nested too deeply"
    if len(text) <= length:
        return text
    half = (length - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"

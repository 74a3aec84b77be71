# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Errors about data files, worded so that the reader knows where to look and what to do."""

import os


class DataError(ValueError):
    """A data file, or one record of it, is not what its format promises.

    The message reads `FILE, WHERE: PROBLEM: found FOUND, expected EXPECTED; HINT`, with the parts that are known.

    Args:
        problem: What is wrong, in a few words.
        file: The offending file.
        where: The line, row or record inside the file, for example `"line 3"`.
        found: What stands there; shown with `repr` and cut when long.
        expected: What should stand there.
        hint: What the reader can do about it.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str | os.PathLike[str] | None = None,
        where: str | None = None,
        found: object = None,
        expected: str | None = None,
        hint: str | None = None,
    ) -> None:
        place = ", ".join(str(part) for part in (file, where) if part is not None)
        details = ", ".join(
            part
            for part in (
                None if found is None else f"found {shorten(found)}",
                None if expected is None else f"expected {expected}",
            )
            if part is not None
        )
        message = ": ".join(part for part in (place, problem, details) if part)
        super().__init__(f"{message}; {hint}" if hint else message)


class MissingFileError(DataError, FileNotFoundError):
    """A file that a builder needs is not there; the message says where to get it."""


def shorten(value: object, length: int = 120) -> str:
    """`repr(value)`, cut in the middle to at most `length` characters."""
    text = repr(value)
    if len(text) <= length:
        return text
    half = (length - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"

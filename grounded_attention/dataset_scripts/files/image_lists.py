# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Lists of image ids: text files with one id a line."""

from pathlib import Path

from .errors import DataError
from .streaming import text_lines


def read_ids(path: str | Path) -> set[str]:
    """Reads a list of image ids.

    Args:
        path (`str` or `Path`): The list.

    Returns:
        `set[str]`: The ids.

    Raises:
        MissingFileError: The file does not exist.
        DataError: The list has no id, or a line has several words.
    """
    ids = set()
    for number, line in text_lines(Path(path), "expected a list of image ids, one a line"):
        words = line.split()
        if len(words) > 1:
            raise DataError(
                "the line has several words", file=path, where=f"line {number}", found=line, expected="one id a line"
            )
        ids.update(words)
    if not ids:
        raise DataError("the list of images is empty", file=path, expected="image ids, one a line")
    return ids

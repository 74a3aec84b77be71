# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Lists of image ids in text files, one a line."""

from pathlib import Path

from .errors import DataError
from .streaming import text_lines


def read_ids(path: str | Path) -> set[str]:
    """The ids of a list.

    Raises:
        MissingFileError: There is no such file.
        DataError: It holds no ids, or a line with several words.
    """
    ids = set()
    for number, line in text_lines(Path(path), "expected a list of image ids, one a line"):
        words = line.split()
        if len(words) > 1:
            raise DataError("not one id", file=path, where=f"line {number}", found=line, expected="one id a line")
        ids.update(words)
    if not ids:
        raise DataError("the list of images is empty", file=path, expected="image ids, one a line")
    return ids

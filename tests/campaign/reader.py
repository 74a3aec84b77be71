# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a reader under fire is, and where it keeps what it read."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SLOW = ("flip", "cut")
OUT = Path("out")  # in the working directory; deleted before each case


@dataclass(frozen=True)
class Reader:
    """A reader under fire."""

    name: str
    make: Callable[[Path, Path], Any]  # writes sound files to a folder; the first argument has the scenes
    read: Callable[[Path], int]  # reads the files as a command does; the exit status
    rows: Callable[[], int]  # that were read into `OUT`
    slow: bool = False  # it takes seconds, and is given only the kinds of damage `SLOW`


def digest_of_output():
    """A digest of everything that a reader wrote."""
    content = hashlib.sha256()
    for path in sorted(path for path in OUT.rglob("*") if path.is_file() and path.suffix != ".json"):
        content.update(path.read_bytes())
    return content.hexdigest()


def keep(content, rows):
    """Stores what was read, for the comparison."""
    OUT.mkdir(exist_ok=True)
    (OUT / "rows.npy").write_bytes(np.int64(rows).tobytes())
    (OUT / "content.txt").write_text(repr(content), encoding="utf-8", errors="backslashreplace")


def kept_rows():
    return int(np.frombuffer((OUT / "rows.npy").read_bytes(), np.int64)[0])

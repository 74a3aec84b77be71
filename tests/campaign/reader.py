# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a reader under fire is, and where it keeps what it read."""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .jobs import as_command

SLOW = ("flip", "cut")
OUT = Path("out")  # in the working directory; deleted before each case


def keep(content, rows):
    """Stores what was read, for the comparison."""
    OUT.mkdir(exist_ok=True)
    (OUT / "rows.npy").write_bytes(np.int64(rows).tobytes())
    (OUT / "content.txt").write_text(repr(content), encoding="utf-8", errors="backslashreplace")


def kept_rows():
    return int(np.frombuffer((OUT / "rows.npy").read_bytes(), np.int64)[0])


@dataclass(frozen=True)
class Reader:
    """A reader under fire."""

    name: str
    make: Callable  # writes sound files to a folder; the first argument has the scenes
    read: Callable  # reads the files as a command does; the exit status
    rows: Callable = kept_rows  # that were read into `OUT`
    slow: bool = False  # it takes seconds, and is given only the kinds of damage `SLOW`


def digest_of_output():
    """A digest of everything that a reader wrote."""
    content = hashlib.sha256()
    for path in sorted(path for path in OUT.rglob("*") if path.is_file() and path.suffix != ".json"):
        content.update(path.read_bytes())
    return content.hexdigest()


def copy_of(*names):
    """Copies files and folders of `prepare`."""

    def make(base, folder):
        for name in names:
            source = base / name
            copy = shutil.copytree if source.is_dir() else shutil.copyfile
            copy(source, folder / source.name)

    return make


def keeping(read):
    """A reader that keeps the content and the number of rows that a function finds in a folder."""
    return lambda folder: as_command(lambda: keep(*read(folder)))


def keep_file(status, path):
    """Keeps what a command has written, if it ended well; returns its status."""
    if status == 0:
        keep(Path(path).read_bytes(), 1)
    return status

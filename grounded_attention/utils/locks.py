# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One process at a time in a folder: a lock of `filelock`, which ends with its process, however it ends."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from .whole_files import make_folder

LOCK = ".lock"  # it stays in the folder
GRACE = 2.0  # seconds in which a process that is just ending may let go


class FolderInUse(ValueError):
    """Another process works in the folder."""


def require_locks(folder: str | os.PathLike[str]) -> None:
    """Raises an error where locks do not work: some libraries would wait for ever without a word."""
    make_folder(folder)
    try:
        with tempfile.TemporaryDirectory(dir=folder) as own, FileLock(Path(own) / LOCK, timeout=GRACE):
            pass
    except OSError as error:
        raise ValueError(
            f"{folder}: this file system has no locks ({error}), which the cache of data sets needs: set HF_HOME to a "
            "folder of another one"
        ) from error


@contextmanager
def folder_lock(folder: str | os.PathLike[str], *, doing: str, hint: str, wait: bool = False) -> Iterator[None]:
    """Context in which no other process is in the same context with the same folder."""
    lock = FileLock(Path(folder) / LOCK)
    try:
        other = f"{folder}: another process {doing}"
        try:
            lock.acquire(timeout=GRACE)
        except Timeout as error:
            if not wait:
                raise FolderInUse(f"{other}: {hint}") from error
            print(f"waiting: {other}", file=sys.stderr, flush=True)
            lock.acquire()
    except OSError as error:
        print(f"warning: {folder}: no lock ({error}); start only one process in this folder", file=sys.stderr)
    try:
        yield
    finally:
        lock.release()

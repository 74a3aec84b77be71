# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Processes of this machine: shared memory, leaving a launch, and one at a time in a folder. Imports no torch."""

import gc
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from filelock import FileLock, Timeout

from .named_types import AnyPath
from .whole_files import make_folder


@cache
def shares_memory() -> bool:
    """Whether processes can share memory; one line says if they cannot, since all work is then done by one."""
    try:
        multiprocessing.Lock()
    except (OSError, ImportError) as error:
        print(f"warning: processes cannot share memory here ({error}): one does all the work", file=sys.stderr)
        return False
    return True


def leave_group() -> None:
    """Leaves the process group of a launch, if there is one; a process that ends without leaving may abort.

    Models that were trained in several processes share the threads of the group. They are part of cycles (a Trainer
    and its callbacks), so they are collected first: with one left when Python has ended, the process aborts at times.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        gc.collect()
        distributed.destroy_process_group()


LOCK = ".lock"  # it stays in the folder
GRACE = 2.0  # seconds in which a process that is just ending may let go


class FolderInUse(ValueError):
    """Another process works in the folder."""


def require_locks(folder: AnyPath) -> None:
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
def folder_lock(folder: AnyPath, *, doing: str, hint: str, wait: bool = False) -> Iterator[None]:
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

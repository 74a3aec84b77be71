# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One process at a time in a folder: a lock that ends with its process, however it ends.

The lock is a POSIX record lock on the file `.lock` of the folder. The system releases it when the process ends, also
after SIGKILL or a power failure, and processes that are forked do not keep it. It holds between machines on NFS whose
server and clients run the lock service (NFSv4 always does). On a file system without locks, and on Windows, a warning
is printed and two processes do not notice each other.
"""

import json
import os
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .whole_files import make_folder

LOCK = ".lock"
POLL = 0.2  # seconds between two attempts
BEGIN = b'{"process"'  # of the content of a lock; a killed process leaves less
GRACE = 2.0  # seconds in which a process that is just ending may let go


class FolderInUse(ValueError):
    """Another process works in the folder."""


def require_locks(folder: str | os.PathLike[str]) -> None:
    """Raises an error where the locks of other libraries do not work: some wait for ever without a word."""
    make_folder(folder)
    with suppress(ImportError), tempfile.TemporaryFile(dir=folder) as file:
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(
                f"{folder}: this file system has no locks ({error}), which the cache of data sets needs: set HF_HOME "
                "to a folder of another one"
            ) from error


@contextmanager
def folder_lock(folder: str | os.PathLike[str], *, doing: str, hint: str, wait: bool = False) -> Iterator[None]:
    """Context in which no other process is in the same context with the same folder."""
    path = Path(folder) / LOCK
    descriptor, tries = _take(path), 0
    while descriptor is None:
        if not wait and tries * POLL >= GRACE:
            raise FolderInUse(f"{folder}: {_holder(path)} {doing}: {hint}")
        if wait and tries == 0:
            print(f"waiting: {folder}: {_holder(path)} {doing}", file=sys.stderr, flush=True)
        time.sleep(POLL)
        descriptor, tries = _take(path), tries + 1
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # while it is locked, see `_take`
        os.close(descriptor)


def _take(path: Path) -> int | None:
    """The descriptor of the locked file; `None` if another process has the lock."""
    if path.is_symlink():
        raise ValueError(f"{path}: a symbolic link to {os.readlink(path)}, expected no file or a lock: remove it")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    try:
        if not _lock(descriptor, path) or not _is_at(descriptor, path):
            os.close(descriptor)
            return None
        _check_ours(descriptor, path)
        os.truncate(descriptor, 0)
        os.write(descriptor, json.dumps({"process": os.getpid(), "machine": socket.gethostname()}).encode())
    except BaseException:
        with suppress(OSError):
            os.close(descriptor)
        raise
    return descriptor


def _lock(descriptor: int, path: Path) -> bool:
    try:
        import fcntl

        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows both for a lock that another process has
        return False
    except (ImportError, OSError) as error:
        print(
            f"warning: {path.parent}: this file system has no locks ({error}); start only one process in this folder",
            file=sys.stderr,
        )
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the locked file is still the one at this path: its former owner may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _check_ours(descriptor: int, path: Path) -> None:
    """Raises an error for a file that no process of this package made, which would lose its content."""
    status = os.fstat(descriptor)
    content = os.read(descriptor, len(BEGIN)) if stat.S_ISREG(status.st_mode) else None
    if content is None or not BEGIN.startswith(content) or status.st_nlink > 1:
        raise ValueError(
            f"{path}: this file is no lock of this package, or has a second name (a hard link), and would be "
            "overwritten: move it, or give another folder"
        )
    os.lseek(descriptor, 0, os.SEEK_SET)


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {int(holder['process'])} on {str(holder['machine'])[:100]}"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Atomic file writes; every file that is written in one go is written with this module.

A file is written under a temporary name in the same folder and then renamed. A reader finds the old file or the new
one, never a partial one; after an exception only the old file exists. Any package may import this module; it imports
none.
"""

import errno
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .named_types import AnyPath

# Only a killed process leaves a draft; drafts are never pushed to the Hub (`LEFT_OUT`).
DRAFT = ".partial"


@contextmanager
def whole_file(path: AnyPath, *, durable: bool = False) -> Iterator[Path]:
    """Context that yields the path of a draft to write, and renames it to `path` if the block succeeds."""
    path = Path(path)
    if not path.parent.exists():
        make_folder(path.parent)
    _check_replaceable(path)
    draft = path.with_name(f"{path.name}.{os.getpid()}{DRAFT}")
    try:
        # What is there was left by a dead process of this number, or is a link into the file of somebody else.
        draft.unlink(missing_ok=True)
        draft.open("xb").close()
        yield draft
        if durable:
            _synchronise(draft, os.O_RDWR)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    if durable:
        synchronise_folder(path.parent)


def _check_replaceable(path: Path) -> None:
    """A rename would put a plain file in the place of a device such as /dev/null, for all programs."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # a new file; any other problem shows when the draft is written
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise FileExistsError(errno.EEXIST, f"this is {kind}, which is not replaced by a file", str(path))


def write_text(path: AnyPath, text: str, *, durable: bool = False) -> None:
    """Writes a UTF-8 text file atomically, see `whole_file`."""
    with whole_file(path, durable=durable) as draft:
        draft.write_text(text, encoding="utf-8")


def write_bytes(path: AnyPath, content: bytes) -> None:
    """Writes a file atomically, see `whole_file`."""
    with whole_file(path) as draft:
        draft.write_bytes(content)


def write_json(path: AnyPath, content: Any) -> None:
    """Writes a JSON file atomically, see `whole_file`."""
    write_text(path, json.dumps(content, indent=1))


def make_folder(folder: AnyPath) -> None:
    """Makes a folder, and those above it, if it is not there; unlike `exist_ok=True`, passes over no other error."""
    if not os.path.isdir(folder):
        try:
            os.makedirs(folder)
        except FileExistsError:  # another process was faster, or it is a file
            if not os.path.isdir(folder):
                raise


def delete_folder(folder: AnyPath) -> None:
    """Deletes a folder and all that is in it, if it exists."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


def synchronise_folder(folder: Path) -> None:
    """Waits until renames in `folder` are on the disk, on systems that support it."""
    if os.name == "posix":
        _synchronise(folder, os.O_RDONLY)


def _synchronise(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

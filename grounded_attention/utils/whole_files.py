# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Files that are never seen half written: every file that is written at once is written here.

A file is written beside its place and moved there in one step. A reader finds the old file or the new one, never a
part of one; after an exception the old file is there as before, and nothing else. Any room may import this module; it
imports none.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# Only a process that was killed leaves a draft behind; no draft is pushed to the Hub (`LEFT_OUT`).
DRAFT = ".partial"


@contextmanager
def whole_file(path: str | os.PathLike[str], *, durable: bool = False) -> Iterator[Path]:
    """Gives the path of a draft to be written, and puts it in the place of `path` where the block ends well.

    Each process has its own draft, so two that write the same file at the same time do not mix: the later one stays.

    Args:
        path (`str | os.PathLike[str]`): the file; its folder must exist.
        durable (`bool`, *optional*, defaults to `False`): return only when the file is on the disk, so that it also
            survives a loss of power.

    Raises:
        OSError: the file cannot be written; what was there stays.
    """
    path = Path(path)
    draft = path.with_name(f"{path.name}.{os.getpid()}{DRAFT}")
    try:
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


def write_text(path: str | os.PathLike[str], text: str, *, durable: bool = False) -> None:
    """Writes a UTF-8 text file as a whole, see `whole_file`."""
    with whole_file(path, durable=durable) as draft:
        draft.write_text(text, encoding="utf-8")


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file as a whole, see `whole_file`."""
    with whole_file(path) as draft:
        draft.write_bytes(content)


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Writes a JSON file as a whole, see `whole_file`.

    Raises:
        TypeError: the content has a value that JSON does not know.
    """
    write_text(path, json.dumps(content, indent=1))


def synchronise_folder(folder: Path) -> None:
    """Returns when renames in `folder` are on the disk, where the system can say so."""
    if os.name == "posix":
        _synchronise(folder, os.O_RDONLY)


def _synchronise(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The files of a region table's folder: their names, the manifest, and how they reach the disk whole."""

import json
import os
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.utils.whole_files import write_text

MANIFEST = "regions.json"
PARTIAL = "regions.partial.json"
INDEX = "regions.index.arrow"
SHARDS = "regions-*.arrow"
FORMAT = "grounded-attention region table"
VERSION = 1
_BUILD_HINT = "build one with `grounded-attention regions import`"


def shard_name(number: int) -> str:
    """File name of a shard; names sort as numbers."""
    return f"regions-{number:05d}.arrow"


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a finished table.

    Raises:
        MissingFileError: no table in `folder`.
        DataError: the table is unfinished, or the manifest is damaged or of another version.
    """
    path = folder / MANIFEST
    if path.exists():
        return read_json(path)
    if (folder / PARTIAL).exists():
        hint = "its import was interrupted: run the same command again with --resume"
        raise DataError("the region table is unfinished", file=folder, hint=hint)
    raise MissingFileError("no region table here", file=folder, expected=f"a folder with {MANIFEST}", hint=_BUILD_HINT)


def read_json(path: Path) -> dict[str, Any]:
    """A manifest, finished or partial, of this format and version."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = (content["format"], content["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError("not the manifest of a region table", file=path, found=str(error), hint=_BUILD_HINT) from error
    if found != (FORMAT, VERSION):
        raise DataError("unknown format", file=path, found=found, expected=repr((FORMAT, VERSION)), hint=_BUILD_HINT)
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Puts a manifest in place in one step: after a crash there is the whole file or none."""
    text = json.dumps({"format": FORMAT, "version": VERSION, **content}, indent=2)
    write_text(path, text + "\n", durable=True)


def synchronise(file: IO[Any]) -> None:
    """Returns when what was written to `file` is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def map_file(path: Path, size: int) -> pa.Buffer:
    """A memory-mapped file as one buffer.

    Raises:
        MissingFileError: it is gone.
        DataError: it is not `size` bytes long.
    """
    hint = "copy the table again, or import the features again"
    if not path.exists():
        raise MissingFileError("a file of the region table is missing", file=path, hint=hint)
    if (found := path.stat().st_size) != size:
        raise DataError("the file is cut or exchanged", file=path, found=found, expected=f"{size} bytes", hint=hint)
    with pa.memory_map(str(path)) as source:
        return source.read_buffer(size)


def lock_file(path: Path) -> IO[Any]:
    """Opens `path` and holds it for this process until it is closed, where the file system knows locks.

    Raises:
        DataError: another process holds it.
    """
    file = open(path, "r+", encoding="utf-8")  # network file systems lock only what is open for writing
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise DataError("another process is writing this table", file=path.parent, hint="wait for it") from error
    except (ImportError, OSError):  # Windows, file systems without locks: two writers at once go unnoticed there.
        pass
    return file


def add_digest(total: int, digest: bytes) -> int:
    """Adds a row's digest to a table's checksum; the order of the rows makes no difference."""
    return (total + int.from_bytes(digest, "big")) % (1 << 8 * len(digest))


def digest_text(total: int) -> str:
    """A table's checksum as it stands in the manifest."""
    return f"{total:032x}"

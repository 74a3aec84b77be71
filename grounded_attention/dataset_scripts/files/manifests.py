# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Manifests: the JSON file that describes a table; differences between two sources; checksums; work in parts.

A part is one Parquet file, written whole by one process, so a part that exists is finished. When all parts exist, the
first process joins them in order. So the bytes of the result depend neither on the number of processes nor on
interruptions.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.named_types import Columns, Fields
from grounded_attention.utils.progress import is_quiet
from grounded_attention.utils.whole_files import whole_file, write_text

from .errors import DataError, MissingFileError, damaged, refuse_if

_SHOWN = 4
MAX_SIZE = 2**63 - 1
DAMAGED_HINT = "copy the folder again, or remove it and begin again"


@dataclass(frozen=True)
class ManifestKind:
    """The manifests of one kind of table."""

    name: str
    version: int
    what: str
    hint: str  # how one is made
    file: str  # of a finished table
    unfinished: str  # how an unfinished one is continued

    @property
    def partial(self) -> str:
        """The manifest of an unfinished table."""
        return self.file.replace(".json", ".partial.json")

    def read_finished(self, folder: Path, is_valid: Callable[[Fields], bool]) -> Fields:
        """Reads the manifest of a finished table, whose parts `is_valid` checks."""
        path = folder / self.file
        noun = self.what.removeprefix("a ")
        if path.exists():
            content = self.read(path)
            try:
                valid = is_valid(content)
            except (KeyError, TypeError, AttributeError):
                valid = False
            refuse_if(not valid, "the manifest is damaged", file=path, hint=DAMAGED_HINT)
            return content
        refuse_if((folder / self.partial).exists(), f"unfinished {noun}", file=folder, hint=self.unfinished)
        raise MissingFileError(f"no {noun} here", file=folder, expected=f"a folder with {self.file}", hint=self.hint)

    def read(self, path: Path) -> Fields:
        """Reads a manifest, finished or partial, and checks format, version, and that the provenance is an object."""
        with damaged(f"not the manifest of {self.what}", ValueError, KeyError, TypeError, file=path, hint=self.hint):
            content = read_json(path)
            found = (content["format"], content["version"])
        if found != (self.name, self.version):
            expected = repr((self.name, self.version))
            raise DataError("unknown format", file=path, found=found, expected=expected, hint=self.hint)
        if not isinstance(provenance := content.get("provenance"), dict):
            problem = "the manifest is damaged: no provenance"
            found = provenance
            raise DataError(problem, file=path, found=found, expected="an object", hint=DAMAGED_HINT)
        return content

    def write(self, path: Path, content: Fields) -> None:
        """Writes a manifest in one step: after a crash, either the complete file or no file exists."""
        text = json.dumps({"format": self.name, "version": self.version, **content}, indent=2)
        write_text(path, text + "\n", durable=True)


def check_file(path: Path, size: int, hint: str) -> None:
    """Checks a file of a table, of which the manifest has the size."""
    if not path.exists():
        raise MissingFileError("a file of the table is missing", file=path, hint=hint)
    found = path.stat().st_size
    refuse_if(
        found != size, "the file is cut or replaced", file=path, found=found, expected=f"{size} bytes", hint=hint
    )


def refuse_strays(shards: Iterable[Path]) -> None:
    """Refuses shards in a folder where a table begins."""
    strays = sorted(shards)
    if strays:
        raise DataError("shards without a manifest", file=strays[0], hint="remove them or choose another folder")


def is_size(value: object, largest: int = MAX_SIZE) -> bool:
    """Returns whether a value of a manifest is a whole number from 1 that fits into the integers of Arrow."""
    return type(value) is int and 0 < value <= largest


def describe_changes(there: Columns, wanted: Columns) -> str:
    """Describes the fields in which two provenances differ, with both values; at most four fields."""
    before = _flat(there)
    now = _flat(wanted)
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return ", ".join(f"{key} ({before.get(key)!r:.60}, now {now.get(key)!r:.60})" for key in keys[:_SHOWN])


def _flat(value: Columns, prefix: str = "") -> Fields:
    flat: Fields = {}
    for key, item in value.items():
        flat.update(_flat(item, f"{prefix}{key}.") if isinstance(item, Mapping) else {prefix + key: item})
    return flat


def sha256(path: Path) -> str:
    """Computes the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_parts(
    folder: Path,
    count: int,
    size: int,
    make: Callable[[range, tqdm], pa.Table],
    state: Any,
    *,
    title: str,
    unit: str,
    progress: bool = True,
) -> dict[Path, range]:
    """Makes the parts of this process that are missing, and waits for those of the others.

    Args:
        folder (`Path`): the folder of the parts.
        count (`int`): how many units of work there are.
        size (`int`): how many of them a part has.
        make (`Callable`): makes the part of some units, in ascending order; it updates the bar.
        state (`PartialState`): the processes of the launch.
        title (`str`): what the bar says.
        unit (`str`): what a unit is called.
        progress (`bool`, *optional*, defaults to `True`): whether the first process shows a bar.

    Returns:
        `dict[Path, range]`: the units of each part, in order.
    """
    parts = {}
    for number, start in enumerate(range(0, count, size)):
        parts[folder / f"{number:07d}.parquet"] = range(start, min(start + size, count))
    pending = [path for path in parts if not path.exists()]
    state.wait_for_everyone()  # every process has seen the same parts
    mine = pending[state.process_index :: state.num_processes]
    total = sum(len(parts[path]) for path in mine)
    hidden = not progress or state.process_index > 0 or is_quiet()
    with tqdm(total=total, unit=unit, disable=hidden) as bar:
        bar.set_description(f"{title} ({len(parts) - len(pending):,} of {len(parts):,} parts done before)")
        for path in mine:
            part = make(parts[path], bar)
            with whole_file(path, durable=True) as draft:
                pq.write_table(part, draft)
    state.wait_for_everyone()
    return parts


def join_parts(path: Path, parts: Mapping[Path, range], schema: pa.Schema, row_each: bool) -> None:
    """Writes the parts into one file, in order, of which one is in memory; `row_each`: every unit of work is a row."""
    with whole_file(path, durable=True) as draft, pq.ParquetWriter(draft, schema) as writer:
        for part, units in parts.items():
            writer.write_table(_read_part(part, schema, len(units) if row_each else None))


def refuse_changes(begun: Columns, provenance: Columns, file: Path, what: str, hint: str) -> None:
    """Refuses to go on with work that was begun with another source."""
    if begun != provenance:
        changes = describe_changes(begun, provenance)
        raise DataError(f"{what} of another source; they differ in {changes}", file=file, hint=hint)


def _read_part(path: Path, schema: pa.Schema, size: int | None) -> pa.Table:
    hint = "remove this file, then run the same command again"
    try:
        part = pq.read_table(path, schema=schema)
        part.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk, not of the content
            raise
        problem = "the part is damaged"
        found = str(error)[:200]
        raise DataError(problem, file=path, found=found, expected="a Parquet file", hint=hint) from error
    if size is not None and len(part) != size:
        raise DataError("the part is cut", file=path, found=len(part), expected=f"{size} rows", hint=hint)
    return part

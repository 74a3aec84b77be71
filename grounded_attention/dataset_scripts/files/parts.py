# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Long work in parts, with any number of processes and after any interruption.

A part is one Parquet file, written whole by one process, so a part that exists is finished. When all parts exist, the
first process joins them in order. So the bytes of the result depend neither on the number of processes nor on
interruptions.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from grounded_attention.utils.named_types import Columns
from grounded_attention.utils.progress import is_quiet
from grounded_attention.utils.whole_files import whole_file

from .errors import DataError
from .manifests import describe_changes


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

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writes a table of pseudo-labels in parts, with any number of processes and after any interruption.

The captions, in their order, are cut into parts of a fixed number of captions. A part is one file, written whole by
one process, so a part that exists is finished. When all parts exist, the first process joins them, in order, into the
shards of the table. So the bytes of a table depend neither on the number of processes nor on interruptions.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.files.manifests import describe_changes, refuse_strays, sha256
from grounded_attention.dataset_scripts.regions.files import lock_file
from grounded_attention.utils.whole_files import delete_folder, make_folder, whole_file

from .files import KIND, MANIFEST, PARTIAL, PARTS, SHARDS, read_manifest, shard_name
from .rows import SCHEMA, CaptionLabels, check_labels, to_arrow
from .statistics import LabelCounts

CAPTIONS_PER_SHARD = 100_000


def finished_manifest(folder: Path, provenance: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the manifest of finished pseudo-labels with this provenance, or None if there are none in the folder."""
    if not (folder / MANIFEST).exists():
        return None
    manifest = read_manifest(folder)
    _check_same(folder, manifest, provenance, "finished")
    delete_folder(folder / PARTS)
    (folder / PARTIAL).unlink(missing_ok=True)
    return manifest


def _check_same(folder: Path, manifest: dict[str, Any], provenance: dict[str, Any], state: str) -> None:
    if manifest["provenance"] == provenance:
        return
    changes = describe_changes(manifest["provenance"], provenance)
    problem = f"the folder holds {state} pseudo-labels of another source; they differ in {changes}"
    raise DataError(problem, file=folder, hint="choose another folder, or remove this one")


class PseudoLabelWriter:
    """The folder of unfinished pseudo-labels, locked by the first process of a run."""

    def __init__(self, path: str | os.PathLike[str], provenance: dict[str, Any]) -> None:
        self.path, self.provenance = Path(path), provenance
        self._lock: IO[Any] | None = None

    def begin(self) -> None:
        """Creates or continues the folder and locks it; for the first process of a run."""
        make_folder(self.path / PARTS)
        partial = self.path / PARTIAL
        if not partial.exists():
            refuse_strays(self.path.glob(SHARDS))
            KIND.write(partial, {"provenance": self.provenance})
        self._lock = lock_file(partial)
        manifest = KIND.read(partial)
        if manifest["provenance"] != self.provenance and any((self.path / PARTS).glob("*.parquet")):
            _check_same(self.path, manifest, self.provenance, "unfinished")
        elif manifest["provenance"] != self.provenance:  # no part is finished, so nothing is lost
            self.close()
            KIND.write(partial, {"provenance": self.provenance})
            self._lock = lock_file(partial)

    def part_path(self, number: int) -> Path:
        """Returns the file of a part."""
        return self.path / PARTS / f"{number:07d}.parquet"

    def is_done(self, number: int) -> bool:
        """Returns whether a part is finished."""
        return self.part_path(number).exists()

    def write_part(self, number: int, rows: Sequence[CaptionLabels], texts: Sequence[str]) -> None:
        """Writes a part whole."""
        for row, text in zip(rows, texts, strict=True):
            check_labels(row, text)
        with whole_file(self.part_path(number), durable=True) as draft:
            pq.write_table(to_arrow(rows), draft)

    def finish(
        self, bounds: Sequence[tuple[int, int]], captions_per_shard: int = CAPTIONS_PER_SHARD
    ) -> dict[str, Any]:
        """Joins the parts into shards and writes the manifest; one part is in memory at a time."""
        counts, number = LabelCounts(), 0
        shards: list[dict[str, Any]] = []
        while number < len(bounds):
            path = self.path / shard_name(len(shards))
            with whole_file(path, durable=True) as draft, pq.ParquetWriter(draft, SCHEMA) as writer:
                written = 0
                while number < len(bounds) and written < captions_per_shard:
                    part, rows = self._read_part(number, *bounds[number])
                    writer.write_table(part)
                    for row in rows:
                        counts.add(row)
                    written, number = written + len(part), number + 1
            shards.append({"file": path.name, "bytes": path.stat().st_size, "sha256": sha256(path)})
        content = {"provenance": self.provenance, "statistics": counts.as_dict(), "shards": shards}
        KIND.write(self.path / MANIFEST, content)
        self.close()
        (self.path / PARTIAL).unlink()
        delete_folder(self.path / PARTS)
        return read_manifest(self.path)

    def _read_part(self, number: int, start: int, end: int) -> tuple[pa.Table, list[CaptionLabels]]:
        path, hint = self.part_path(number), "remove this file, then run the same command again"
        try:
            part = pq.read_table(path, schema=SCHEMA)
            rows = [CaptionLabels(**row) for row in part.to_pylist()]
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of the disk, not of the content
                raise
            problem = "the part is damaged"
            raise DataError(
                problem, file=path, found=str(error)[:200], expected="a Parquet file", hint=hint
            ) from error
        if len(rows) != end - start:
            raise DataError("the part is cut", file=path, found=len(rows), expected=f"{end - start} rows", hint=hint)
        return part, rows

    def close(self) -> None:
        """Releases the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def part_bounds(captions: int, size: int) -> Iterator[tuple[int, int]]:
    """Yields first caption and the caption after the last of each part."""
    return ((start, min(start + size, captions)) for start in range(0, captions, size))

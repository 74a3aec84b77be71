# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writes a region table shard by shard, so that a crash at any moment costs at most the shard being written."""

import json
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from grounded_attention.dataset_scripts.files.errors import DataError, placed, refuse_if
from grounded_attention.dataset_scripts.files.manifests import refuse_changes, refuse_strays
from grounded_attention.utils.named_types import AnyPath, Columns, Fields
from grounded_attention.utils.processes import folder_lock
from grounded_attention.utils.safe_paths import refuse_links
from grounded_attention.utils.whole_files import DRAFT, make_folder, whole_file

from .rows import Regions, Widths, make_batch, row_widths, validate_regions
from .shards import (
    INDEX,
    KIND,
    MANIFEST,
    PARTIAL,
    SHARDS,
    Shard,
    add_digest,
    digest_text,
    read_manifest,
    shard_name,
    write_index,
)

SHARD_BYTES = 64 << 20
# People read the summary: the count of what was skipped is exact, the list has at most this many.
MAX_PROBLEMS = 1000
SAME_SOURCE = "use the same source and options, choose another folder, or remove this one"


def finished_table(folder: Path, provenance: Columns) -> Fields | None:
    """The manifest of the finished table of a source, None if there is none; one of another source is an error."""
    if not (folder / MANIFEST).exists():
        return None
    manifest = read_manifest(folder)
    refuse_changes(manifest["provenance"], provenance, folder, "a finished table", SAME_SOURCE)
    return manifest


def skip_or_refuse(error: DataError, on_error: str, problems: list[str], hint: str) -> None:
    """Adds the problem of an image to those that are skipped, or raises it, as `--on-error` says."""
    if on_error == "refuse":
        raise DataError(str(error), hint=f"to skip such images, {hint}") from error
    problems.append(str(error))


class ShardWriter:
    """Writes rows into new shards of a folder; at most one shard is in memory.

    Args:
        path (`Path`): The folder.
        process (`int`): The number of the process, which is part of the names of its shards.
        shard_bytes (`int`): Size in bytes at which a shard is written.

    Attributes:
        written (`set[str]`): The id of every image of the folder.
    """

    def __init__(self, path: Path, process: int = 0, shard_bytes: int | None = None) -> None:
        self.path = path
        self.process = process
        self.written: set[str] = set()
        self._widths: Widths | None = None
        self._rows: list[Regions] = []
        self._bytes = 0
        self._shard_bytes = SHARD_BYTES if shard_bytes is None else shard_bytes
        self._number = 0
        for shard in map(Shard, sorted(path.glob(SHARDS))):
            self._number = int(shard.path.stem.split("-")[1]) + 1
            self._widths = self._widths or shard.arrays_of_rows
            self.written.update(shard.ids.to_pylist())

    def write(self, regions: Regions) -> None:
        """Appends one image.

        Features and class probabilities become float16; the other arrays get the dtypes of `Regions`.

        Args:
            regions (`Regions`): The image's regions, boxes normalised.

        Raises:
            DataError: The id was written before; an array has a wrong length, or another width than in the first row;
                a value is NaN or infinite; a box is inverted or outside [0, 1]. Nothing is written then.
        """
        with placed(where=f"image {regions.image_id}"):
            row = validate_regions(regions)
            refuse_if(row.image_id in self.written, "image id occurs twice")
            widths = row_widths(row)
            refuse_if(
                widths != (self._widths or widths),
                "arrays differ from those of the first row",
                found=widths,
                expected=repr(self._widths),
            )
        self._widths = widths
        self.written.add(row.image_id)
        self._rows.append(row)
        self._bytes += sum(array.nbytes for array in row.arrays().values())
        if self._bytes >= self._shard_bytes:
            self.flush()

    def flush(self) -> None:
        """Writes the rows in memory as a shard."""
        if not self._rows:
            return
        batch = make_batch(self._rows)
        with whole_file(self.path / shard_name(self._number, self.process), durable=True) as draft:
            with pa.ipc.new_stream(str(draft), batch.schema) as writer:
                writer.write_batch(batch)
        self._number, self._rows, self._bytes = self._number + 1, [], 0


class RegionTableWriter(ShardWriter):
    """Writes a region table; only one shard and the ids are in memory.

    The first row determines which arrays a row has and their widths. When the `with` block ends without an exception,
    the table is finished. Otherwise it stays unfinished: it cannot be opened, and a writer with `resume=True` and the
    same provenance continues after its last shard. An exception costs no row, a kill or a power failure the rows that
    were in memory.

    Args:
        path (`str` or `os.PathLike`): Folder of the table; created if needed.
        provenance (`dict`): Facts about the source that can be written as JSON: file names, format, detector. They are
            part of the manifest.
        resume (`bool`, *optional*, defaults to `False`): Continue the unfinished table, if there is one.
        shard_bytes (`int`, *optional*, defaults to 64 MB): Size in bytes at which a new shard file begins.

    Attributes:
        written (`set[str]`): The id of every image written so far.
        summary (`dict`): Facts about the import that can be written as JSON; they become part of the manifest.

    Raises:
        DataError: The folder holds a finished table, an unfinished one without `resume`, or one from another source;
            or another process writes to it.
        ValueError: The folder contains a symbolic link.

    Example:
        >>> with RegionTableWriter("data/regions", {"detector": "none"}) as writer:  # doctest: +SKIP
        ...     writer.write(Regions("7", 640, 480, boxes, features))
    """

    def __init__(
        self,
        path: AnyPath,
        provenance: Fields,
        resume: bool = False,
        shard_bytes: int | None = None,
    ) -> None:
        # In the form that JSON gives it (lists for tuples), to compare it with that of a resumed table.
        self.provenance: Fields = json.loads(json.dumps(provenance))
        self.summary: Fields = {}
        self._finished = False
        self._lock = ExitStack()
        self._begin(Path(path), resume)
        super().__init__(Path(path), shard_bytes=shard_bytes)

    def _begin(self, path: Path, resume: bool) -> None:
        make_folder(path)
        refuse_links(path)
        partial = path / PARTIAL
        if (path / MANIFEST).exists():
            hint = "remove it or choose another folder"
            raise DataError("the folder already holds a finished region table", file=path, hint=hint)
        if not partial.exists():
            refuse_strays(path.glob(SHARDS))
            KIND.write(partial, {"provenance": self.provenance})
        elif not resume:
            hint = "continue it with --resume, or remove the folder"
            raise DataError("the folder holds an unfinished region table", file=path, hint=hint)
        self._lock.enter_context(folder_lock(path, doing="is writing this table", hint="wait for it"))
        for draft in path.glob(f"{SHARDS}.*{DRAFT}"):  # of a killed process
            draft.unlink()
        refuse_changes(KIND.read(partial)["provenance"], self.provenance, path, "an unfinished table", SAME_SOURCE)

    def finish(self) -> None:
        """Completes the table with the shards of all processes: index, then manifest, each whole on the disk.

        Raises:
            DataError: No row was written.
        """
        self.flush()
        shards = list(map(Shard, sorted(self.path.glob(SHARDS))))
        refuse_if(not shards, "no image was written, so there is no table", file=self.path)
        arrays = shards[0].arrays_of_rows
        for shard in shards:
            refuse_if(shard.arrays_of_rows != arrays, "shard of another table", file=shard.path)
        checksum = 0
        for digest in (digest for shard in shards for digest in shard.digests.to_pylist()):
            checksum = add_digest(checksum, digest)
        ids = [image_id for shard in shards for image_id in shard.ids.to_pylist()]
        counts = np.concatenate([shard.counts() for shard in shards])
        manifest = {
            "images": len(ids),
            "regions": int(counts.sum()),
            "feature_size": arrays["features"],
            "arrays": arrays,
            "checksum": digest_text(checksum),
            "provenance": self.provenance,
            "summary": self.summary,
            "shards": [
                {"file": shard.path.name, "bytes": shard.path.stat().st_size, "rows": len(shard)} for shard in shards
            ],
            "index_bytes": write_index(self.path / INDEX, ids, counts),
        }
        KIND.write(self.path / MANIFEST, manifest)
        (self.path / PARTIAL).unlink()
        self._finished = True
        self._lock.close()

    def close(self) -> None:
        """Writes the rows in memory; without an earlier `finish`, the table stays unfinished."""
        try:
            self.flush()
        finally:
            self._lock.close()

    def __enter__(self) -> "RegionTableWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._finished:
                self.finish()
        finally:
            self.close()
            if kind is not None and not self.written:  # a second try may use another source or format
                (self.path / PARTIAL).unlink(missing_ok=True)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writes a region table row by row, so that an interruption at any moment costs at most the row being written."""

import json
import os
import shutil
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import pyarrow as pa

from grounded_attention.dataset_scripts.files.errors import DataError, placed, refuse_if
from grounded_attention.dataset_scripts.files.manifests import refuse_strays
from grounded_attention.utils.safe_paths import refuse_links
from grounded_attention.utils.whole_files import make_folder, whole_file

from .files import (
    INDEX,
    KIND,
    MANIFEST,
    PARTIAL,
    SHARDS,
    add_digest,
    digest_text,
    lock_file,
    shard_name,
    synchronise,
)
from .rows import (
    ARROW_ERRORS,
    Regions,
    RowDecoder,
    encode_row,
    read_schema,
    row_digest,
    row_schema,
    row_widths,
    schema_widths,
    validate_regions,
)

SHARD_BYTES = 4 << 30
# A stream ends with the continuation marker and a length of zero.
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class RegionTableWriter:
    """Writes a region table; only one image and the list of ids are in memory.

    The first row determines which arrays a row has and their widths. When the `with` block ends without an exception,
    the table is finished. Otherwise it stays unfinished: it cannot be opened, and a writer with `resume=True` and the
    same provenance continues after its last complete row, also after a kill or a power failure.

    Args:
        path (`str` or `os.PathLike`): Folder of the table; created if needed.
        provenance (`dict`): Facts about the source that can be written as JSON: file names, format, detector. They are
            part of the manifest.
        resume (`bool`, *optional*, defaults to `False`): Continue the unfinished table, if there is one.
        shard_bytes (`int`, *optional*, defaults to `SHARD_BYTES`): Size in bytes at which a new shard file begins.

    Attributes:
        written (`dict[str, int]`): Image id -> source row, of every image written so far (-1 if the row was not
            given).
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
        path: str | os.PathLike[str],
        provenance: dict[str, Any],
        resume: bool = False,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self.path = Path(path)
        # In the form that JSON gives it (lists for tuples), to compare it with that of a resumed table.
        self.provenance: dict[str, Any] = json.loads(json.dumps(provenance))
        self.summary: dict[str, Any] = {}
        self.written: dict[str, int] = {}
        self._regions = 0
        self._checksum = 0
        self._places = array("q")  # shard, offset, length of each row
        self._shard_bytes = shard_bytes
        self._shards: list[dict[str, Any]] = []
        self._schema: pa.Schema | None = None
        self._widths: dict[str, int | None] | None = None
        self._file: IO[bytes] | None = None
        self._lock = self._begin(resume)

    def _begin(self, resume: bool) -> IO[Any]:
        make_folder(self.path)
        refuse_links(self.path)
        partial = self.path / PARTIAL
        if (self.path / MANIFEST).exists():
            hint = "remove it or choose another folder"
            raise DataError("the folder already holds a finished region table", file=self.path, hint=hint)
        if not partial.exists():
            self._start_new(partial)
        elif not resume:
            hint = "continue it with --resume, or remove the folder"
            raise DataError("the folder holds an unfinished region table", file=self.path, hint=hint)
        lock = lock_file(partial)
        begun = KIND.read(partial)["provenance"]
        if begun != self.provenance:
            expected, hint = repr(self.provenance), "resume with the same source and options, or remove the folder"
            raise DataError(
                "the unfinished table has another source", file=partial, found=begun, expected=expected, hint=hint
            )
        for shard in sorted(self.path.glob(SHARDS)):
            self._recover(shard)
        return lock

    def _start_new(self, partial: Path) -> None:
        refuse_strays(self.path.glob(SHARDS))
        KIND.write(partial, {"provenance": self.provenance})

    def _recover(self, shard: Path) -> None:
        """Keeps the intact rows of a shard, cuts the rest, and closes it."""
        end = 0
        for offset, length, decoder, message in intact_rows(shard):
            regions, source_row, digest = decoder.verified(message)
            self._schema = self._schema or decoder.schema
            self._register_row(regions, source_row, digest, offset, length)
            end = offset + length
        if not end:
            shard.unlink()
            return
        if shard.stat().st_nlink > 1:  # a copy made with hard links, which must not change with this file
            with whole_file(shard) as draft:
                shutil.copyfile(shard, draft)
        with open(shard, "r+b") as file:
            file.truncate(end)
            file.seek(end)
            self._close(file, shard.name)

    def write(self, regions: Regions, source_row: int = -1) -> None:
        """Appends one image.

        Features and class probabilities become float16; the other arrays get the dtypes of `Regions`.

        Args:
            regions (`Regions`): The image's regions, boxes normalised.
            source_row (`int`, *optional*, defaults to `-1`): Number of the row in the source, for a later resume.

        Raises:
            DataError: The id was written before; an array has a wrong length, or another width than in the first row;
                a value is NaN or infinite; a box is inverted or outside [0, 1]. Nothing is written then.
        """
        with placed(where=f"image {regions.image_id}"):
            row = validate_regions(regions)
            schema = self._fitting_schema(row)
        digest = row_digest(row)
        message = encode_row(row, schema, source_row, digest).serialize()
        file = self._file or self._open_shard(schema)
        offset = file.tell()
        file.write(message)
        file.flush()
        self._register_row(row, source_row, digest, offset, message.size)
        if offset + message.size >= self._shard_bytes:
            self._close_shard()

    def _fitting_schema(self, row: Regions) -> pa.Schema:
        if row.image_id in self.written:
            first = self.written[row.image_id]
            raise DataError("image id occurs twice", hint=None if first < 0 else f"the first is row {first}")
        widths = row_widths(row)
        self._widths = self._widths or (widths if self._schema is None else schema_widths(self._schema))
        if widths != self._widths:
            raise DataError("arrays differ from those of the first row", found=widths, expected=repr(self._widths))
        self._schema = self._schema or row_schema(widths)
        return self._schema

    def _register_row(self, row: Regions, source_row: int, digest: bytes, offset: int, length: int) -> None:
        self.written[row.image_id] = source_row
        self._places.extend((len(self._shards), offset, length))
        self._regions += len(row)
        self._checksum = add_digest(self._checksum, digest)

    def _open_shard(self, schema: pa.Schema) -> IO[bytes]:
        number = int(Path(self._shards[-1]["file"]).stem.split("-")[1]) + 1 if self._shards else 0
        self._file = open(self.path / shard_name(number), "xb")
        self._file.write(schema.serialize())
        return self._file

    def _close_shard(self) -> None:
        if self._file is not None:
            self._close(self._file, Path(self._file.name).name)
            self._file = None

    def _close(self, file: IO[bytes], name: str) -> None:
        file.write(END_OF_STREAM)
        synchronise(file)
        self._shards.append({"file": name, "bytes": file.tell()})
        file.close()

    def finish(self) -> None:
        """Completes the table: shards, then index, then manifest, each written to the disk before the next.

        Raises:
            DataError: No row was written.
        """
        refuse_if(not self.written, "no image was written, so there is no table", file=self.path)
        self._close_shard()
        index_bytes = self._write_index()
        widths = schema_widths(self._schema)
        manifest = {
            "images": len(self.written),
            "regions": self._regions,
            "feature_size": widths["features"],
            "arrays": widths,
            "checksum": digest_text(self._checksum),
            "provenance": self.provenance,
            "summary": self.summary,
            "shards": self._shards,
            "index_bytes": index_bytes,
        }
        KIND.write(self.path / MANIFEST, manifest)
        (self.path / PARTIAL).unlink()
        self.close()

    def _write_index(self) -> int:
        places = np.array(self._places, dtype=np.int64).reshape(-1, 3)
        columns = {name: places[:, column] for column, name in enumerate(("shard", "offset", "length"))}
        table = pa.table({"image_id": pa.array(self.written, pa.string()), **columns})
        with whole_file(self.path / INDEX, durable=True) as draft:
            with pa.ipc.new_file(str(draft), table.schema) as writer:
                writer.write_table(table)
            return draft.stat().st_size

    def close(self) -> None:
        """Closes the files; without an earlier `finish`, the table stays unfinished."""
        try:
            # Closing writes the buffered bytes, so it fails on a full disk.
            if self._file is not None:
                self._file.close()
        finally:
            self._file = None
            self._lock.close()

    def __enter__(self) -> "RegionTableWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._lock.closed:
                self.finish()
        finally:
            try:
                self.close()
            finally:
                if kind is not None and not self.written:
                    self._remove_traces()

    def _remove_traces(self) -> None:
        """Removes the files of a table without rows: a second try may use another source or format."""
        for shard in self.path.glob(SHARDS):
            shard.unlink()
        (self.path / PARTIAL).unlink(missing_ok=True)


def intact_rows(shard: Path) -> Iterator[tuple[int, int, RowDecoder, pa.Buffer]]:
    """Yields offset, length, decoder and message of each row of a shard, up to the first torn or damaged row."""
    size = shard.stat().st_size
    if not size:
        return
    with pa.memory_map(str(shard)) as source:
        buffer = source.read_buffer(size)
    stream = pa.BufferReader(buffer)
    try:
        decoder = RowDecoder(read_schema(stream))
        while (start := stream.tell()) < size:
            pa.ipc.read_message(stream)
            message = buffer.slice(start, stream.tell() - start)
            decoder.verified(message)
            yield start, message.size, decoder, message
    except (DataError, *ARROW_ERRORS):
        return

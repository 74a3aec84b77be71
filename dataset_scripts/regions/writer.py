# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writing a region table row by row, so that a kill at any moment costs at most the row being written."""

import json
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import pyarrow as pa

from grounded_attention.dataset_scripts.files.errors import DataError

from .files import (
    INDEX,
    MANIFEST,
    PARTIAL,
    SHARDS,
    add_digest,
    digest_text,
    lock_file,
    read_json,
    shard_name,
    synchronise,
    write_json,
)
from .rows import (
    Regions,
    RowDecoder,
    checked,
    encode_row,
    read_schema,
    row_digest,
    row_schema,
    row_widths,
    schema_widths,
)

SHARD_BYTES = 4 << 30
# A stream ends with the continuation marker and a length of zero.
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class RegionTableWriter:
    """Writes a region table; one image in memory at a time, beside the list of ids.

    Which arrays a row holds, and their widths, is set by the first row and holds for all. Leaving the `with` block
    without an exception finishes the table; otherwise it stays unfinished: it cannot be opened, and a writer with
    `resume=True` and the same provenance goes on after its last whole row, also after a kill or a power failure.

    Args:
        path: Folder of the table; made if need be.
        provenance: JSON-able facts about the source: file names, format, detector. Part of the manifest.
        resume: Go on with the unfinished table, if there is one.
        shard_bytes: Size in bytes at which a new shard file begins.

    Attributes:
        written: The source row of every image written so far, by image id (-1 where it was not told).
        summary: JSON-able facts about the import that become part of the manifest.

    Raises:
        DataError: the folder holds a finished table, an unfinished one that is not to be resumed or comes from
            another source, or another process writes to it.

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
        # What JSON makes of it (lists for tuples), to compare with what a resumed table says.
        self.provenance: dict[str, Any] = json.loads(json.dumps(provenance))
        self.summary: dict[str, Any] = {}
        self.written: dict[str, int] = {}
        self._regions = 0
        self._checksum = 0
        self._places = array("q")  # shard, offset, length of each row
        self._shard_bytes = shard_bytes
        self._shards: list[dict[str, Any]] = []
        self._schema: pa.Schema | None = None
        self._file: IO[bytes] | None = None
        self._lock = self._begin(resume)

    def _begin(self, resume: bool) -> IO[Any]:
        self.path.mkdir(parents=True, exist_ok=True)
        partial = self.path / PARTIAL
        if (self.path / MANIFEST).exists():
            hint = "remove it or name another folder"
            raise DataError("a finished region table stands here", file=self.path, hint=hint)
        if not partial.exists():
            self._begin_anew(partial)
        elif not resume:
            hint = "go on with --resume, or remove the folder"
            raise DataError("an unfinished region table stands here", file=self.path, hint=hint)
        lock = lock_file(partial)
        begun = read_json(partial)["provenance"]
        if begun != self.provenance:
            expected, hint = repr(self.provenance), "resume with the same source and options, or remove the folder"
            raise DataError(
                "the table was begun from another source", file=partial, found=begun, expected=expected, hint=hint
            )
        for shard in sorted(self.path.glob(SHARDS)):
            self._recover(shard)
        return lock

    def _begin_anew(self, partial: Path) -> None:
        if strays := sorted(self.path.glob(SHARDS)):
            raise DataError("shards without a manifest", file=strays[0], hint="remove them or name another folder")
        write_json(partial, {"provenance": self.provenance})

    def _recover(self, shard: Path) -> None:
        """Keeps the whole rows of a shard, cuts what follows them, and closes it."""
        end = 0
        for offset, length, decoder, message in whole_rows(shard):
            regions, source_row, digest = decoder.verified(message)
            self._schema = self._schema or decoder.schema
            self._account(regions, source_row, digest, offset, length)
            end = offset + length
        if not end:
            shard.unlink()
            return
        with open(shard, "r+b") as file:
            file.truncate(end)
            file.seek(end)
            self._close(file, shard.name)

    def write(self, regions: Regions, source_row: int = -1) -> None:
        """Appends one image; features and class probabilities become float16, everything else as in `Regions`.

        Args:
            regions: The image's regions, boxes normalised.
            source_row: Number of the row in the source it was read from, for whoever resumes.

        Raises:
            DataError: the id was written before; an array has a wrong length, or another width than in the first row;
                NaN or infinity; a box outside [0, 1] or inverted. Nothing is written then.
        """
        try:
            row = checked(regions)
            schema = self._fitting_schema(row)
        except DataError as error:
            raise DataError(str(error), where=f"image {regions.image_id}") from error
        digest = row_digest(row)
        message = encode_row(row, schema, source_row, digest).serialize()
        file = self._file or self._open_shard(schema)
        offset = file.tell()
        file.write(message)
        file.flush()
        self._account(row, source_row, digest, offset, message.size)
        if offset + message.size >= self._shard_bytes:
            self._close_shard()

    def _fitting_schema(self, row: Regions) -> pa.Schema:
        if row.image_id in self.written:
            first = self.written[row.image_id]
            raise DataError("image id occurs twice", hint=None if first < 0 else f"the first is row {first}")
        schema = row_schema(row_widths(row))
        if schema != (self._schema or schema):
            problem = "arrays differ from those of the first row"
            raise DataError(problem, found=schema_widths(schema), expected=repr(schema_widths(self._schema)))
        self._schema = schema
        return schema

    def _account(self, row: Regions, source_row: int, digest: bytes, offset: int, length: int) -> None:
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
        """Makes the table complete: shards, then index, then manifest, each on the disk before the next.

        Raises:
            DataError: no row was written.
        """
        if not self.written:
            raise DataError("no image was written, so there is no table", file=self.path)
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
        write_json(self.path / MANIFEST, manifest)
        (self.path / PARTIAL).unlink()
        self.close()

    def _write_index(self) -> int:
        places = np.array(self._places, dtype=np.int64).reshape(-1, 3)
        columns = {name: places[:, column] for column, name in enumerate(("shard", "offset", "length"))}
        table = pa.table({"image_id": pa.array(self.written, pa.string()), **columns})
        with open(self.path / INDEX, "wb") as file:
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
            synchronise(file)
            return file.tell()

    def close(self) -> None:
        """Lets go of the files; without `finish` before it, the table stays unfinished."""
        try:
            # Closing writes what is still in memory, so it fails on a full disk.
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
        """Without a whole row there is nothing to resume: a second try may name another source or format."""
        for shard in self.path.glob(SHARDS):
            shard.unlink()
        (self.path / PARTIAL).unlink(missing_ok=True)


def whole_rows(shard: Path) -> Iterator[tuple[int, int, RowDecoder, pa.Buffer]]:
    """Offset, length, decoder and message of each row of a shard, up to the first that is torn or damaged."""
    size = shard.stat().st_size
    if not size:
        return
    with pa.memory_map(str(shard)) as source:
        buffer = source.read_buffer(size)
    stream = pa.BufferReader(buffer)
    try:
        decoder = RowDecoder(read_schema(stream))
        while True:
            offset = stream.tell()
            pa.ipc.read_message(stream)
            message = buffer.slice(offset, stream.tell() - offset)
            decoder.verified(message)
            yield offset, message.size, decoder, message
    except (pa.ArrowException, EOFError, OSError, DataError):
        return

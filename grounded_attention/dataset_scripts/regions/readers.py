# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Readers of legacy region-feature files: each yields the records of a file, one at a time, as `Regions`.

A format is a function from a path to an iterator of `SourceRecord`, registered in `READERS`. A record is decoded on
request only, so that a damaged one can be skipped and a known one costs no decoding.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.utils.bounded_files import AnyPath, open_data

from .reader_h5 import read_h5
from .reader_json import read_vl_bert_zip, split_zip_path
from .reader_lmdb import read_lmdb
from .reader_records import FEATURE_SIZE, SourceRecord
from .reader_tsv import BUTD_FIELDS, LXMERT_FIELDS, read_butd_tsv, read_lxmert_tsv
from .rows import Regions

__all__ = ["FEATURE_SIZE", "READERS", "SourceRecord", "read_regions", "recognise", "source_records", "source_size"]

Reader = Callable[[Path], Iterator[SourceRecord]]

READERS: dict[str, Reader] = {
    "butd_tsv": read_butd_tsv,
    "h5": read_h5,
    "lmdb": read_lmdb,
    "lxmert_tsv": read_lxmert_tsv,
    "vl_bert_zip": read_vl_bert_zip,
}
# Offset in the file, bytes there, format, description.
SIGNATURES = (
    (0, b"PK\x03\x04", "vl_bert_zip", "a zip archive"),
    (0, b"\x89HDF\r\n\x1a\n", "h5", "an HDF5 file"),
    (16, b"\xde\xc0\xef\xbe", "lmdb", "an LMDB file"),
    (0, b"{", "vl_bert_zip", "a JSON object"),
)
# Pattern of file names in a folder, format, description.
FOLDERS = (
    ("data.mdb", "lmdb", "a folder with data.mdb"),
    ("*.json", "vl_bert_zip", "a folder of JSON files"),
)
# Limit for the first line of a tsv.
HEAD_BYTES = 1 << 24


def read_regions(path: AnyPath, format: str, feature_size: int = FEATURE_SIZE) -> Iterator[Regions]:
    """Reads the regions of every image of a legacy feature file, in the file's order, one in memory at a time."""
    for record in source_records(path, format):
        yield record.read(feature_size)


def source_records(path: AnyPath, format: str) -> Iterator[SourceRecord]:
    """Returns the records of a legacy feature file without decoding them."""
    if format == "auto":
        format, _ = recognise(path)
    if format not in READERS:
        raise DataError("unknown format of region features", found=format, expected=f"one of {', '.join(READERS)}")
    existing_source(path, format)
    return READERS[format](Path(path))


def existing_source(path: AnyPath, format: str) -> Path:
    """Returns the file or folder of a source: `path`, or the zip for a place inside a zip."""
    source, _ = split_zip_path(path)
    if not source.exists():
        raise MissingFileError("no such file", file=source, expected=f"region features in the format {format}")
    if not source.is_dir():
        open_data(source).close()  # refuses a pipe, which would be waited for
    return source


def source_size(path: AnyPath) -> int:
    """Returns the bytes of a source: of the file, or of all files in the folder."""
    source, _ = split_zip_path(path)
    if source.is_file():
        return source.stat().st_size
    return sum(file.stat().st_size for file in source.rglob("*") if file.is_file() and file.name != "lock.mdb")


def recognise(path: AnyPath) -> tuple[str, str]:
    """Recognises the format of a source by its content."""
    source = existing_source(path, "auto")
    kind = _recognise_folder(source) if source.is_dir() else _recognise_file(source)
    if kind is None or kind[0] not in READERS:
        saw = kind[1] if kind else sorted(file.name for file in source.iterdir())[:5]
        hint = "if you know the format, give it with --format"
        raise DataError("format not recognised", file=source, found=saw, expected=", ".join(READERS), hint=hint)
    return kind


def _recognise_folder(folder: Path) -> tuple[str, str] | None:
    for pattern, format, seen in FOLDERS:
        if next(folder.rglob(pattern), None):
            return format, seen
    return None


def _recognise_file(file: Path) -> tuple[str, str]:
    with open_data(file) as content:
        line = content.readline(HEAD_BYTES)
        content.seek(0)
        head = content.read(64)
    for offset, signature, format, seen in SIGNATURES:
        if head[offset:].startswith(signature):
            return format, seen
    fields = line.rstrip(b"\r\n\t").count(b"\t") + 1
    for names, format in ((BUTD_FIELDS, "butd_tsv"), (LXMERT_FIELDS, "lxmert_tsv")):
        if fields == len(names) or (fields == len(names) + 1 and format == "butd_tsv"):
            return format, f"a first line of {fields} fields"
    return "", f"{fields} field(s) in the first line, which begins with {head[:24]!r}"

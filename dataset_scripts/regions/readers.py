# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Readers of legacy region-feature files: each yields the records of a file, one at a time, as `Regions`.

A format is a function from a path to an iterator of `SourceRecord`, listed in `READERS` under its name. A record is
decoded only when asked, so that a damaged one can be left out, and one that is known already costs no decoding.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError

from .reader_arrow import read_frcnn_vg
from .reader_h5 import read_h5
from .reader_json import read_vl_bert_zip, split_zip_path
from .reader_lmdb import read_lmdb
from .reader_npy import read_npy_files
from .reader_records import FEATURE_SIZE, SourceRecord
from .reader_tsv import BUTD_FIELDS, LXMERT_FIELDS, read_butd_tsv, read_lxmert_tsv
from .rows import Regions

__all__ = ["FEATURE_SIZE", "READERS", "SourceRecord", "read_regions", "recognise", "source_records", "source_size"]

Reader = Callable[[Path, int], Iterator[SourceRecord]]

READERS: dict[str, Reader] = {
    "butd_tsv": read_butd_tsv,
    "frcnn_vg": read_frcnn_vg,
    "h5": read_h5,
    "lmdb": read_lmdb,
    "lxmert_tsv": read_lxmert_tsv,
    "npy": read_npy_files,
    "vl_bert_zip": read_vl_bert_zip,
}
# Where in the file, which bytes.
SIGNATURES = (
    (0, b"PK\x03\x04", "vl_bert_zip", "a zip archive"),
    (0, b"\x89HDF\r\n\x1a\n", "h5", "an HDF5 file"),
    (0, b"\x93NUMPY", "npy", "a NumPy array"),
    (16, b"\xde\xc0\xef\xbe", "lmdb", "an LMDB file"),
    (0, b"ARROW1", "frcnn_vg", "an Arrow file"),
    (0, b"\xff\xff\xff\xff", "frcnn_vg", "an Arrow stream"),
    (0, b"{", "vl_bert_zip", "a JSON object"),
)
# In a folder, files of which name.
FOLDERS = (
    ("data.mdb", "lmdb", "a folder with data.mdb"),
    ("*.arrow", "frcnn_vg", "a folder of Arrow files"),
    ("*.json", "vl_bert_zip", "a folder of JSON files"),
    ("*.npy", "npy", "a folder of NumPy arrays"),
)
# Of a first line of tsv, or of a file's head.
HEAD_BYTES = 1 << 24


def read_regions(
    path: str | os.PathLike[str],
    format: str,
    feature_size: int = FEATURE_SIZE,
) -> Iterator[Regions]:
    """The regions of every image of a legacy feature file, in the file's order, one in memory at a time.

    Args:
        path: The file, or the folder of formats that have many files.
        format: A name in `READERS`, or "auto".
        feature_size: D, the number of feature values of a region.

    Raises:
        MissingFileError: no such file.
        DataError: the first damaged record, an unknown format, or one that is not recognised.
    """
    for record in source_records(path, format, feature_size):
        yield record.read()


def source_records(path: str | os.PathLike[str], format: str, feature_size: int) -> Iterator[SourceRecord]:
    """The records of a legacy feature file, undecoded; errors as for `read_regions`."""
    if format == "auto":
        format, _ = recognise(path)
    if format not in READERS:
        raise DataError("unknown format of region features", found=format, expected=f"one of {', '.join(READERS)}")
    existing(path, format)
    return READERS[format](Path(path), feature_size)


def existing(path: str | os.PathLike[str], format: str) -> Path:
    """The file or folder of a source, which is `path` but for places inside a zip.

    Raises:
        MissingFileError: it is not there.
    """
    source, _ = split_zip_path(path)
    if not source.exists():
        raise MissingFileError("no such file", file=source, expected=f"region features in the format {format}")
    return source


def source_size(path: str | os.PathLike[str]) -> int:
    """Bytes of a source: of the file, or of the files in the folder."""
    source, _ = split_zip_path(path)
    if source.is_file():
        return source.stat().st_size
    return sum(file.stat().st_size for file in source.rglob("*") if file.is_file() and file.name != "lock.mdb")


def recognise(path: str | os.PathLike[str]) -> tuple[str, str]:
    """The name in `READERS` of a source's format, by its content, and what was seen.

    Raises:
        MissingFileError: no such file.
        DataError: its content is of no known format; the message says what was seen.
    """
    source = existing(path, "auto")
    found = _recognise_folder(source) if source.is_dir() else _recognise_file(source)
    if found is None or found[0] not in READERS:
        saw = found[1] if found else sorted(file.name for file in source.iterdir())[:5]
        hint = "name it with --format if you know better"
        raise DataError("format not recognised", file=source, found=saw, expected=", ".join(READERS), hint=hint)
    return found


def _recognise_folder(folder: Path) -> tuple[str, str] | None:
    for pattern, format, seen in FOLDERS:
        if next(folder.rglob(pattern), None):
            return format, seen
    return None


def _recognise_file(file: Path) -> tuple[str, str]:
    with open(file, "rb") as content:
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

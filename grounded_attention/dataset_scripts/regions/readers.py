# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Readers of legacy region-feature files: each yields the records of a file, one at a time, as `Regions`.

A format is a function from a path to an iterator of `SourceRecord`, registered in `READERS`. A record is decoded on
request only, so that a damaged one can be skipped and a known one costs no decoding.
"""

import codecs
import logging
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError, damaged, refuse_if
from grounded_attention.dataset_scripts.files.records import id_text
from grounded_attention.utils.bounded_files import FileError, open_data, parse_json
from grounded_attention.utils.named_types import AnyPath

from .reader_h5 import read_h5
from .reader_lmdb import read_lmdb
from .reader_records import (
    FEATURE_SIZE,
    MAX_RECORD_BYTES,
    SourceRecord,
    check_length,
)
from .rows import Regions

logger = logging.getLogger(__name__)

BUTD_FIELDS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
BUTD_OPTIONAL = "cls_prob"
LXMERT_FIELDS = (
    "img_id",
    "img_h",
    "img_w",
    "objects_id",
    "objects_conf",
    "attrs_id",
    "attrs_conf",
    "num_boxes",
    "boxes",
    "features",
)


def read_butd_tsv(path: Path) -> Iterator[SourceRecord]:
    """Reads a bottom-up-attention tsv: image_id, image_w, image_h, num_boxes, boxes, features[, cls_prob].

    Boxes are pixels of the original image. Arrays are base64 of little-endian float32. ViLBERT's extractor writes the
    seventh field, (n, C) class probabilities with background as column 0: `classes` is the argmax over the other
    columns, counted from 0, and `scores` is its probability; `class_probs` keeps all C columns.
    """
    return _records(path, BUTD_FIELDS)


def read_lxmert_tsv(path: Path) -> Iterator[SourceRecord]:
    """Reads an LXMERT tsv; note that its height precedes its width.

    Fields: img_id, img_h, img_w, objects_id, objects_conf, attrs_id, attrs_conf, num_boxes, boxes, features. Boxes are
    pixels of the original image. Arrays are base64 of little-endian float32, ids of int64. `objects_id` has no
    background class (0 is the first object), so it is kept unchanged.
    """
    return _records(path, LXMERT_FIELDS)


def _records(path: Path, names: Sequence[str]) -> Iterator[SourceRecord]:
    """Yields the rows of a tsv file. Fields are ids, numbers and base64, never quoted, so each line is a row."""
    with open_data(path) as file:
        refuse_if(not file.peek(1), "the file is empty", file=path, expected="one image a line", hint="copy it again")
        for row, line in enumerate(_lines(file), start=1):
            # Some copies end in an empty line, and some rows in CRLF.
            content = line.rstrip(b"\r\n")
            content = content.removeprefix(codecs.BOM_UTF8) if row == 1 else content
            if content:
                image_id = content.split(b"\t", 1)[0].decode("utf-8", errors="replace")
                decode = partial(_decode, content, names)
                yield SourceRecord(path, row, id_text(image_id), len(line), decode, exact=True)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(MAX_RECORD_BYTES):
        refuse_if(
            len(line) == MAX_RECORD_BYTES,
            "a line is too long for a row",
            file=file.name,
            hint="check that this is the format of the file",
        )
        if not line.endswith(b"\n"):
            logger.warning("%s: the last line has no end, so the file may be cut", file.name)
        yield line


def _decode(line: bytes, names: Sequence[str]) -> dict[str, bytes]:
    values = line.split(b"\t")
    # Some copies have a tab at the end of the line, which has no meaning.
    if values[-1] == b"" and len(values) > len(names):
        values.pop()
    known = [*names, BUTD_OPTIONAL] if names == BUTD_FIELDS and len(values) == len(names) + 1 else names
    if len(values) != len(known):
        hint = "the row is torn, or the file has another format"
        raise DataError(
            "wrong number of fields", found=len(values), expected=f"{len(names)} ({', '.join(names)})", hint=hint
        )
    try:
        values[0].decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError("image id is not UTF-8", found=values[0]) from error
    return dict(zip(known, values, strict=True))


IN_ZIP = ".zip@"
# What `zipfile` raises for damaged content; a ValueError for a name that is not UTF-8, a RuntimeError (of which
# NotImplementedError is one) for an encrypted file or a version or method that it does not know.
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError, ValueError)


def split_zip_path(path: AnyPath) -> tuple[Path, str]:
    """Splits VL-BERT's notation for a folder inside a zip, `x.zip@/a/1.json`, into `x.zip` and `a/1.json`."""
    archive, mark, place = str(path).partition(IN_ZIP)
    if mark:
        return (Path(f"{archive}.zip"), place.strip("/"))
    return (Path(path), "")


def read_vl_bert_zip(path: Path) -> Iterator[SourceRecord]:
    """Reads VL-BERT's `<image id>.json` files: a zip of them, `x.zip@/folder` in one, a folder, or one file.

    Fields: `image_w`, `image_h`, `num_boxes`, `boxes` (pixels of the original image), `features`, optionally `classes`
    (n, 1601) and `attrs` (n, 401), both with background as column 0. Arrays are base64 of little-endian float32. The
    image id is the name of the file, by which VL-BERT finds it. Regions keep the file's order (VL-BERT's own loader
    sorts them by confidence). `image_box_feature`, the feature of the whole image, is dropped, since a table holds
    detected regions only.
    """
    source, place = split_zip_path(path)
    if source.is_dir() or not zipfile.is_zipfile(source):
        if source.is_dir():
            files = sorted(source.rglob("*.json"))
        else:
            files = [source]
        for row, file in enumerate(files, start=1):
            yield SourceRecord(file, row, file.stem, file.stat().st_size, partial(_read_file, file))
        return
    with _open_zip(source) as archive:
        members = [member for member in archive.infolist() if _is_chosen(member.filename, place)]
        if not members:
            raise DataError("no JSON files", file=source, where=place or None, expected="<image id>.json")
        for row, member in enumerate(members, start=1):
            decode = partial(_read_member, archive, member)
            stem = PurePosixPath(member.filename).stem
            yield SourceRecord(source, row, stem, member.compress_size, decode, member.filename)


def _open_zip(path: Path) -> zipfile.ZipFile:
    with damaged("damaged zip archive", *ZIP_ERRORS, file=path, hint="copy or unpack it again"):
        archive = zipfile.ZipFile(path)
    return archive


def _is_chosen(name: str, place: str) -> bool:
    parts = PurePosixPath(name).parts
    return (
        name.endswith(".json") and "__MACOSX" not in parts and (f"/{name}/").startswith(f"/{place}/" if place else "/")
    )


def _read_file(path: Path) -> Any:
    with open_data(path) as file:
        return _parse(file.read(MAX_RECORD_BYTES + 1))


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Any:
    with damaged("damaged file in the zip", *ZIP_ERRORS), archive.open(member) as file:
        content = file.read(MAX_RECORD_BYTES + 1)
    return _parse(content)


def _parse(content: bytes) -> Any:
    check_length(content)
    with damaged("not JSON", FileError, hint="the file is cut or damaged"):
        record = parse_json(content, "record")
    return record


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
        names = kind[1] if kind else sorted(file.name for file in source.iterdir())[:5]
        hint = "if you know the format, give it with --format"
        raise DataError("format not recognised", file=source, found=names, expected=", ".join(READERS), hint=hint)
    return kind


def _recognise_folder(folder: Path) -> tuple[str, str] | None:
    for pattern, format, evidence in FOLDERS:
        if next(folder.rglob(pattern), None):
            return format, evidence
    return None


def _recognise_file(file: Path) -> tuple[str, str]:
    with open_data(file) as content:
        line = content.readline(HEAD_BYTES)
        content.seek(0)
        head = content.read(64)
    for offset, signature, format, evidence in SIGNATURES:
        if head[offset:].startswith(signature):
            return format, evidence
    fields = line.rstrip(b"\r\n\t").count(b"\t") + 1
    for names, format in ((BUTD_FIELDS, "butd_tsv"), (LXMERT_FIELDS, "lxmert_tsv")):
        if fields == len(names) or (fields == len(names) + 1 and format == "butd_tsv"):
            return format, f"a first line of {fields} fields"
    return "", f"{fields} field(s) in the first line, which begins with {head[:24]!r}"

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reader of one JSON file an image, VL-BERT's, in a zip or a folder."""

import lzma
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.utils.bounded_files import AnyPath, FileError, open_data, parse_json

from .reader_records import MAX_RECORD_BYTES, SourceRecord, check_length

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
        files = sorted(source.rglob("*.json")) if source.is_dir() else [source]
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
    try:
        return zipfile.ZipFile(path)
    except ZIP_ERRORS as error:
        raise DataError("damaged zip archive", file=path, found=str(error), hint="copy or unpack it again") from error


def _is_chosen(name: str, place: str) -> bool:
    parts = PurePosixPath(name).parts
    return (
        name.endswith(".json") and "__MACOSX" not in parts and (f"/{name}/").startswith(f"/{place}/" if place else "/")
    )


def _read_file(path: Path) -> Any:
    with open_data(path) as file:
        return _parse(file.read(MAX_RECORD_BYTES + 1))


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Any:
    try:
        with archive.open(member) as file:
            content = file.read(MAX_RECORD_BYTES + 1)
    except ZIP_ERRORS as error:
        raise DataError("damaged file in the zip", found=str(error)) from error
    return _parse(content)


def _parse(content: bytes) -> Any:
    check_length(content)
    try:
        return parse_json(content, "record")
    except FileError as error:
        raise DataError("not JSON", found=str(error)[:200], hint="the file is cut or damaged") from error

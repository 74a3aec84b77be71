# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reader of tsv files of region features: bottom-up attention (also ViLBERT's) and LXMERT."""

import codecs
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if
from grounded_attention.dataset_scripts.files.records import id_text
from grounded_attention.utils.bounded_files import open_data

from .reader_records import MAX_RECORD_BYTES, SourceRecord

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
            if content := content.removeprefix(codecs.BOM_UTF8) if row == 1 else content:
                image_id = content.split(b"\t", 1)[0].decode("utf-8", errors="replace")
                decode = partial(_decode, content, names)
                yield SourceRecord(path, row, id_text(image_id), len(line), decode, exact=True)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(MAX_RECORD_BYTES):
        if len(line) == MAX_RECORD_BYTES:
            raise DataError(
                "a line is too long for a row", file=file.name, hint="check that this is the format of the file"
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

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reader of tsv files of region features: bottom-up attention (also ViLBERT's) and LXMERT."""

import codecs
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if
from grounded_attention.dataset_scripts.files.records import id_text
from grounded_attention.utils.bounded_files import open_data

from .reader_records import FEATURE_SIZE, MAX_RECORD_BYTES, SourceRecord, decode_base64, most_likely, whole_number
from .rows import Regions, normalise_boxes

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


def read_butd_tsv(path: Path, feature_size: int = FEATURE_SIZE) -> Iterator[SourceRecord]:
    """Reads a bottom-up-attention tsv: image_id, image_w, image_h, num_boxes, boxes, features[, cls_prob].

    Boxes are pixels of the original image. Arrays are base64 of little-endian float32. ViLBERT's extractor writes the
    seventh field, (n, C) class probabilities with background as column 0: `classes` is the argmax over the other
    columns, counted from 0, and `scores` is its probability; `class_probs` keeps all C columns.
    """
    return _records(path, lambda line: _decode_butd(line, feature_size))


def read_lxmert_tsv(path: Path, feature_size: int = FEATURE_SIZE) -> Iterator[SourceRecord]:
    """Reads an LXMERT tsv; note that its height precedes its width.

    Fields: img_id, img_h, img_w, objects_id, objects_conf, attrs_id, attrs_conf, num_boxes, boxes, features. Boxes are
    pixels of the original image. Arrays are base64 of little-endian float32, ids of int64. `objects_id` has no
    background class (0 is the first object), so it is kept unchanged.
    """
    return _records(path, lambda line: _decode_lxmert(line, feature_size))


def _records(path: Path, decode: Callable[[bytes], Regions]) -> Iterator[SourceRecord]:
    """Yields the rows of a tsv file. Fields are ids, numbers and base64, never quoted, so each line is a row."""
    with open_data(path) as file:
        refuse_if(not file.peek(1), "the file is empty", file=path, expected="one image a line", hint="copy it again")
        for row, line in enumerate(_lines(file), start=1):
            # Some copies end in an empty line, and some rows in CRLF.
            content = line.rstrip(b"\r\n")
            if content := content.removeprefix(codecs.BOM_UTF8) if row == 1 else content:
                image_id = content.split(b"\t", 1)[0].decode("utf-8", errors="replace")
                yield SourceRecord(path, row, id_text(image_id), len(line), partial(decode, content))


def _lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(MAX_RECORD_BYTES):
        if len(line) == MAX_RECORD_BYTES:
            raise DataError(
                "a line is too long for a row", file=file.name, hint="check that this is the format of the file"
            )
        if not line.endswith(b"\n"):
            logger.warning("%s: the last line has no end, so the file may be cut", file.name)
        yield line


def _decode_butd(line: bytes, feature_size: int) -> Regions:
    fields = _fields(line, BUTD_FIELDS, BUTD_OPTIONAL)
    width, height, count = (_integer(fields, name) for name in ("image_w", "image_h", "num_boxes"))
    class_probs = classes = scores = None
    if BUTD_OPTIONAL in fields:
        class_probs = _matrix(fields, BUTD_OPTIONAL, count)
        classes, scores = most_likely(class_probs, background=True)
    return Regions(
        _text(fields["image_id"]),
        width,
        height,
        boxes=normalise_boxes(_array(fields, "boxes", count, 4), width, height),
        features=_array(fields, "features", count, feature_size),
        classes=classes,
        scores=scores,
        class_probs=class_probs,
    )


def _decode_lxmert(line: bytes, feature_size: int) -> Regions:
    fields = _fields(line, LXMERT_FIELDS)
    width, height, count = (_integer(fields, name) for name in ("img_w", "img_h", "num_boxes"))
    return Regions(
        _text(fields["img_id"]),
        width,
        height,
        boxes=normalise_boxes(_array(fields, "boxes", count, 4), width, height),
        features=_array(fields, "features", count, feature_size),
        classes=_array(fields, "objects_id", count, dtype="<i8"),
        scores=_array(fields, "objects_conf", count),
        attributes=_array(fields, "attrs_id", count, dtype="<i8"),
        attribute_scores=_array(fields, "attrs_conf", count),
    )


def _fields(line: bytes, names: Sequence[str], optional: str | None = None) -> dict[str, bytes]:
    values = line.split(b"\t")
    # Some copies have a tab at the end of the line, which has no meaning.
    if values[-1] == b"" and len(values) > len(names):
        values.pop()
    known = [*names, optional] if optional and len(values) == len(names) + 1 else list(names)
    if len(values) != len(known):
        hint = "the row is torn, or the file has another format"
        raise DataError(
            "wrong number of fields", found=len(values), expected=f"{len(names)} ({', '.join(names)})", hint=hint
        )
    return dict(zip(known, values, strict=True))


def _text(value: bytes) -> str:
    try:
        return id_text(value.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError("image id is not UTF-8", found=value) from error


def _integer(fields: dict[str, bytes], name: str) -> int:
    return whole_number(fields[name], name)


def _array(
    fields: dict[str, bytes], name: str, count: int, width: int | None = None, dtype: str = "<f4"
) -> np.ndarray:
    """Decodes a base64 field to a read-only array (count, width), or (count,) without a width."""
    data = decode_base64(fields[name], name)
    shape = (count,) if width is None else (count, width)
    needed = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if len(data) != needed:
        expected = f"{needed} ({' x '.join(map(str, shape))} values of {np.dtype(dtype).name})"
        raise DataError(f"{name} has a wrong length in bytes", found=len(data), expected=expected)
    return np.frombuffer(data, dtype).reshape(shape)


def _matrix(fields: dict[str, bytes], name: str, count: int) -> np.ndarray:
    """Decodes a base64 field of float32 to an array (count, all columns, at least 2)."""
    values = len(decode_base64(fields[name], name)) // 4
    return _array(fields, name, count, max(values // count, 2))

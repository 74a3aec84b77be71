# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reader of the region features that transformers' LXMERT research project extracts with `frcnn-vg`."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if
from grounded_attention.dataset_scripts.files.records import id_text
from grounded_attention.utils.bounded_files import open_data

from .reader_records import FEATURE_SIZE, SourceRecord, whole_number
from .rows import ARROW_ERRORS, EDGE_TOLERANCE, Regions, normalise_boxes, read_batch

MAGIC = b"ARROW1"
REQUIRED_COLUMNS = ("img_id", "boxes", "roi_features", "sizes")


def read_frcnn_vg(path: Path, feature_size: int = FEATURE_SIZE) -> Iterator[SourceRecord]:
    """Reads an Arrow file, or a folder of them (a saved `datasets.Dataset`), with one row an image.

    Columns: `img_id`, `sizes` (height, width), `roi_features`, `obj_ids` and `attr_ids` (float32, without background),
    `obj_probs`, `attr_probs`, `preds_per_image` (rows after this number are padding), and `boxes`. The boxes are
    already divided by width and height, although the column is not called `normalized_boxes`; if that column exists
    too, it is used. `sizes` is the size of the image after resizing for the detector, and it becomes the regions'
    width and height. Boxes in pixels of the original image are refused, because the file does not contain that image's
    size.
    """
    files = sorted(path.rglob("*.arrow")) if path.is_dir() else [path]
    row = 0
    for file in files:
        open_data(file).close()  # refuses a pipe, which Arrow would wait for
        try:
            with pa.memory_map(str(file)) as source:
                for batch in _batches(source):
                    _check_columns(batch, file)
                    for position in range(len(batch)):
                        row += 1
                        values = batch.slice(position, 1)
                        image_id = id_text(values.column("img_id")[0].as_py())
                        size = batch.nbytes // len(batch)
                        yield SourceRecord(file, row, image_id, size, partial(_read, values, image_id, feature_size))
        except DataError:
            raise
        except ARROW_ERRORS as error:
            raise DataError("damaged Arrow file", file=file, found=str(error)[:200], hint="copy it again") from error


def _batches(source: Any) -> Iterator[pa.RecordBatch]:
    """Yields the record batches of an Arrow file or stream, checked."""
    is_file = source.read_at(len(MAGIC), 0) == MAGIC  # a file is a stream between two marks
    if is_file and source.read_at(len(MAGIC), source.size() - len(MAGIC)) != MAGIC:
        raise ValueError("the end of the file is missing")
    source.seek(8 if is_file else 0)
    messages = iter(pa.MessageReader.open_stream(source))
    schema = pa.ipc.read_schema(next(messages))
    for message in messages:
        batch = read_batch(message, schema)
        batch.validate(full=True)
        yield batch


def _check_columns(batch: pa.RecordBatch, file: Path) -> None:
    if absent := [name for name in REQUIRED_COLUMNS if name not in batch.schema.names]:
        expected = f"the columns {', '.join(REQUIRED_COLUMNS)}"
        raise DataError(f"no column {absent[0]}", file=file, found=", ".join(batch.schema.names), expected=expected)


def _read(row: pa.RecordBatch, image_id: str, feature_size: int) -> Regions:
    height, width = _size(row)
    features = _matrix(row, "roi_features", feature_size)
    name = "normalized_boxes" if "normalized_boxes" in row.schema.names else "boxes"
    boxes = _matrix(row, name, 4)
    count = _count(row, len(features))
    if len(boxes) != len(features):
        raise DataError("boxes and features differ in number", found=len(boxes), expected=str(len(features)))
    boxes = _pixels(boxes[:count], width, height)
    optional = {
        target: _vector(row, source, len(features), count)
        for target, source in (
            ("classes", "obj_ids"),
            ("scores", "obj_probs"),
            ("attributes", "attr_ids"),
            ("attribute_scores", "attr_probs"),
        )
    }
    return Regions(image_id, width, height, normalise_boxes(boxes, width, height), features[:count], **optional)


def _size(row: pa.RecordBatch) -> list[int]:
    sizes = _flat(row, "sizes")
    if len(sizes) != 2 or not np.isfinite(sizes).all():
        raise DataError("sizes is not a size", found=sizes[:4].tolist(), expected="height and width")
    return [whole_number(round(float(value)), "sizes") for value in sizes]


def _count(row: pa.RecordBatch, rows: int) -> int:
    if "preds_per_image" not in row.schema.names:
        return rows
    count = whole_number(row.column("preds_per_image")[0].as_py(), "preds_per_image")
    refuse_if(count > rows, "preds_per_image exceeds the features", found=count, expected=f"at most {rows}")
    return count


def _pixels(boxes: np.ndarray, width: int, height: int) -> np.ndarray:
    size = np.array([width, height, width, height], dtype=np.float32)
    # Divided boxes may exceed 1 by up to one pixel.
    if (boxes > 1 + EDGE_TOLERANCE / size).any():
        hint = "boxes in pixels of the original image cannot be divided, because the file does not contain its size"
        raise DataError(
            "boxes are not divided by the image's size", found=float(boxes.max()), expected="at most 1", hint=hint
        )
    return boxes * size


def _flat(row: pa.RecordBatch, name: str) -> np.ndarray:
    """Returns all numbers of a cell, in order."""
    column = row.column(name)
    # `datasets` stores matrices in extension types.
    array = column.storage if isinstance(column, pa.ExtensionArray) else column
    while pa.types.is_nested(array.type):
        refuse_if(array.null_count, f"{name} is missing")
        array = array.flatten()
    if array.null_count or not (pa.types.is_floating(array.type) or pa.types.is_integer(array.type)):
        raise DataError(f"{name} is missing or is not numeric", found=str(array.type))
    return array.to_numpy(zero_copy_only=False)


def _matrix(row: pa.RecordBatch, name: str, width: int) -> np.ndarray:
    flat = _flat(row, name)
    if not len(flat) or len(flat) % width:
        raise DataError(f"{name} has a wrong length", found=len(flat), expected=f"a multiple of {width}")
    return flat.reshape(-1, width)


def _vector(row: pa.RecordBatch, name: str, rows: int, count: int) -> np.ndarray | None:
    if name not in row.schema.names:
        return None
    values = _flat(row, name)
    refuse_if(len(values) != rows, f"{name} has a wrong length", found=len(values), expected=str(rows))
    if name.endswith("_ids") and not (np.isfinite(values).all() and (values == np.floor(values)).all()):
        raise DataError(f"{name} contain a value that is not a whole number")
    return values[:count]

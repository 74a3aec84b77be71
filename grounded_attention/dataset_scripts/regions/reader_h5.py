# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reader of HDF5 files of region features: bottom-up attention in PyTorch (hengyuan-hu), BAN, GQA and VOLTA."""

import logging
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from grounded_attention.dataset_scripts.files.errors import (
    DataError,
    damaged,
    placed,
    refuse_if,
    require_file,
)
from grounded_attention.dataset_scripts.files.records import Record, id_text, plain
from grounded_attention.dataset_scripts.files.safe_pickle import load_pickle
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.named_types import Columns

from .reader_records import MAX_RECORD_BYTES, SourceRecord, import_library

logger = logging.getLogger(__name__)


INDEX_SUFFIX = "_imgid2idx.pkl"
GQA_INFO = "gqa_objects_info.json"
HENGYUAN = ("image_features", "image_bb", "spatial_features")
GQA = ("features", "bboxes")
# Two boxes of an image may give widths (float32 quotients) that differ by this many pixels.
SIZE_TOLERANCE = 0.51


def read_h5(path: Path) -> Iterator[SourceRecord]:
    """Reads an HDF5 file; its datasets determine which of four layouts it has.

    Fixed (hengyuan-hu): `image_features` (N, 36, D), `image_bb` (N, 36, 4) in pixels, `spatial_features` (N, 36, 6).
    The first four spatial features are `image_bb` divided by the image's size, so the size is their quotient. Adaptive
    (BAN): the same arrays without the image axis, (total, D), with `pos_boxes` (N, 2), first and last + 1 of each
    image. The ids come from `<stem>_imgid2idx.pkl` in the same folder, {image id: row}, read by `safe_pickle`.

    GQA: `features` (N, 100, D) and `bboxes` (N, 100, 4) in pixels, `gqa_objects_<k>.h5`; sizes, numbers of objects and
    rows come from `gqa_objects_info.json` in the same folder.

    VOLTA: one group an image; its name is the image id. It has the datasets `boxes` (pixels), `features`, `img_h`,
    `img_w`, `obj_id`, `obj_conf`, `attr_id`, `attr_conf`, `num_objects`.
    """
    h5py = import_library("h5py")
    kinds = (OSError, RuntimeError, KeyError, TypeError)
    with damaged("damaged HDF5 file", *kinds, file=path, hint="copy it again"):
        with h5py.File(path, "r") as file:
            if len(file) < 10:
                arrays = {name: _own(file, name, path) for name in file}
            else:
                arrays = {}
            images: list[tuple[str, Any]]
            fields: Callable[[Any, Any], Columns]
            if "image_features" in arrays:
                content = arrays
                images = _image_rows(path, arrays)
                fields = _hengyuan_fields
            elif set(GQA) <= set(arrays):
                content = arrays
                images = _gqa_info(path, arrays)
                fields = _gqa_fields
            else:
                content = file
                images = [(id_text(name), name) for name in file]
                fields = _volta_fields
            size = path.stat().st_size // max(len(images), 1)
            for number, (image_id, place) in enumerate(images, start=1):
                decode = partial(fields, content, place)
                yield SourceRecord(path, number, image_id, size, decode, f"image {image_id}")


def _own(group: Any, name: str, path: Path | None = None) -> Any:
    """An entry of a group; refuses one whose bytes may be those of another file, which would get into the table."""
    link = group.get(name, getclass=True, getlink=True)
    if link is None:  # of a name with damaged bytes
        raise KeyError(name)
    found = link.__name__
    entry = group[name] if found == "HardLink" else None
    if entry is not None:
        virtual = getattr(entry, "is_virtual", False)
        external = getattr(entry, "external", None)
        if external:
            found = "external storage"
        else:
            found = "a virtual dataset" if virtual else ""
    if found:
        hint = "if you trust it, write the values themselves into the file"
        raise DataError(f"{name} may be in another file", file=path, found=found, expected="its values", hint=hint)
    return entry


def _compare(path: Path, images: int, named: int) -> None:
    """Warns if the index of a file does not name each of its images."""
    if images != named:
        logger.warning("%s: %d images, but its index names %d; the index may be damaged", path, images, named)


def _image_rows(path: Path, file: Any) -> list[tuple[str, int]]:
    for name in HENGYUAN:
        if name not in file:
            raise DataError(f"no dataset {name}", file=path, found=", ".join(file), expected=", ".join(HENGYUAN))
    index = path.with_name(path.stem + INDEX_SUFFIX)
    require_file(index, expected=f"the image ids of {path.name}, {{image id: row}}")
    rows = load_pickle(index)
    if not isinstance(rows, dict) or not rows:
        raise DataError("no image ids", file=index, found=type(rows).__name__, expected="{image id: row}")
    bad = [row for row in map(plain, rows.values()) if type(row) is not int or row < 0]
    if bad:
        raise DataError("a row is not a number", file=index, found=type(bad[0]).__name__)
    _compare(path, len(file["pos_boxes"] if "pos_boxes" in file else file[HENGYUAN[0]]), len(rows))
    with placed(file=index):
        pairs = [(id_text(image_id), int(row)) for image_id, row in rows.items()]
    return sorted(pairs, key=lambda pair: pair[1])  # in the file's order, so that it is read from its begin to its end


def _hengyuan_fields(file: Any, row: int) -> Columns:
    place: Any = row
    if "pos_boxes" in file:
        bounds = np.asarray(_rows(file, "pos_boxes", row))
        if bounds.shape != (2,) or not 0 <= bounds[0] < bounds[1] < np.inf:
            raise DataError("pos_boxes is not a range", found=bounds.tolist(), expected="first < last")
        place = slice(*map(int, bounds))
    features, boxes, spatial = (np.asarray(_rows(file, name, place)) for name in HENGYUAN)
    width = _size(boxes[:, 2], spatial[:, 2])
    height = _size(boxes[:, 3], spatial[:, 3])
    return {"image_w": width, "image_h": height, "boxes": boxes, "features": features}


def _rows(file: Any, name: str, place: Any) -> Any:
    """Reads rows of a dataset; refuses rows that it does not have, and more of them than one image can have."""
    dataset = file[name]
    first, last = (place.start, place.stop) if isinstance(place, slice) else (place, place + 1)
    if last > len(dataset):
        raise DataError(f"{name} has no such row", found=last - 1, expected=f"below {len(dataset)}")
    size = dataset.nbytes // len(dataset) * (last - first)
    refuse_if(size > MAX_RECORD_BYTES, "a dataset is too large for one image", found=f"{name}, {size:,} bytes")
    return dataset[place]


def _size(pixels: np.ndarray, shares: np.ndarray) -> int:
    """Computes width (or height) of an image from right (or lower) edges of boxes, in pixels and divided by it."""
    if not np.isfinite(shares).all() or not (shares > 0).any():
        raise DataError("spatial_features give no image size", found=shares[:4].tolist(), expected="shares above 0")
    quotients = pixels[shares > 0].astype(float) / shares[shares > 0]
    size = float(quotients[np.argmax(shares[shares > 0])])
    refuse_if(
        not np.isfinite(size) or np.abs(pixels - size * shares).max() > SIZE_TOLERANCE,
        "image_bb and spatial_features disagree",
        found=size,
        expected="one image size for all boxes",
    )
    return round(size)


def _gqa_info(path: Path, file: Any) -> list[tuple[str, Columns]]:
    """Reads the entries of this file's images, in its order; each has a row of its own."""
    index = path.with_name(GQA_INFO)
    number = re.search(r"_(\d+)$", path.stem)
    require_file(index, expected=f"ids and image sizes for {path.name}")
    if number is None:
        raise DataError("the file name contains no number", file=path, expected="gqa_objects_<number>.h5")
    expected = "{image id: {width, height, objectsNum, idx, file}}"
    with damaged("not the objects' info", ValueError, AttributeError, file=index, expected=expected):
        content = read_json(index).items()
    entries: dict[int, tuple[str, Columns]] = {}
    for image_id, values in content:
        entry = Record(values, index, f"image {image_id}", "get the file again")
        if entry.integer("file", minimum=0) != int(number[1]):
            continue
        row = entry.integer("idx", minimum=0)
        if row in entries:
            raise entry.error(f"the same idx as image {entries[row][0]}", found=row, expected="a row of its own")
        entries[row] = (image_id, values)
    _compare(path, len(file[GQA[0]]), len(entries))
    return [entries[row] for row in sorted(entries)]


def _gqa_fields(file: Any, entry: Columns) -> Columns:
    features, boxes = (np.asarray(_rows(file, name, entry["idx"])) for name in GQA)
    sizes = {"image_w": entry.get("width"), "image_h": entry.get("height"), "num_boxes": entry.get("objectsNum")}
    return {**sizes, "boxes": boxes, "features": features}


def _volta_fields(file: Any, name: str) -> Columns:
    group = _own(file, name)
    if not hasattr(group, "items"):
        layouts = "groups with boxes and features, or image_features, or features and bboxes"
        raise DataError("not the group of an image", found=f"dataset {name}", expected=layouts)
    entries = {field: _own(group, field) for field in group}
    arrays = {field: content for field, content in entries.items() if hasattr(content, "shape")}
    large = [field for field, content in arrays.items() if content.nbytes > MAX_RECORD_BYTES]
    if large:
        raise DataError("a dataset is too large for one image", found=f"{large[0]}, {arrays[large[0]].nbytes:,} bytes")
    return {field: content[()] for field, content in arrays.items()}

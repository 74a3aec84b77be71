# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reader of MMF's region features: NumPy files, one pair an image."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError, refuse_if
from grounded_attention.dataset_scripts.files.safe_pickle import load_npy

from .reader_records import FEATURE_SIZE, SourceRecord, regions_from_fields
from .rows import Regions

INFO = "_info"


def read_npy_files(path: Path, feature_size: int = FEATURE_SIZE) -> Iterator[SourceRecord]:
    """Reads MMF's .npy files: a folder of `<stem>.npy` (n, D) with `<stem>_info.npy`, or one such file.

    The info file is an object array with a dict: `bbox` (pixels of the original image), `num_boxes`, `objects`,
    `image_width`, `image_height`, `cls_prob`, `image_id`. One .npy may hold a dict of everything. `objects` has no
    background class; `cls_prob` has one only if it has 1,601 columns. The image id is the path in the folder without
    `.npy`, by which MMF finds it (the info does not always have an `image_id`). `safe_pickle` reads the objects.
    """
    folder = path if path.is_dir() else path.parent
    files = sorted(file for file in path.rglob("*.npy")) if path.is_dir() else [path]
    chosen = [file for file in files if not file.stem.endswith(INFO)]
    refuse_if(not chosen, "no NumPy files of features", file=path, expected=f"<stem>.npy beside <stem>{INFO}.npy")
    for row, file in enumerate(chosen, start=1):
        size = file.stat().st_size
        image_id = file.relative_to(folder).with_suffix("").as_posix()
        yield SourceRecord(file, row, image_id, size, partial(_read, file, image_id, feature_size))


def _read(path: Path, image_id: str, feature_size: int) -> Regions:
    features = load_npy(path)
    fields: dict[Any, Any] = features if isinstance(features, dict) else {"features": features, **_info(path)}
    if isinstance(fields.get("info"), dict):
        fields = {**fields, **fields["info"]}
    if isinstance(features, np.ndarray) and features.ndim != 2:
        raise DataError("features have a wrong shape", found=features.shape, expected=f"(regions, {feature_size})")
    return regions_from_fields(fields, image_id, feature_size)


def _info(path: Path) -> dict[Any, Any]:
    file = path.with_name(f"{path.stem}{INFO}.npy")
    if not file.is_file():
        raise MissingFileError("no such file", file=file, expected=f"boxes and image size for {path.name}")
    info = load_npy(file)
    if not isinstance(info, dict):
        raise DataError("not a dict of boxes and image size", file=file, found=type(info).__name__)
    return info

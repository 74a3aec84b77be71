# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writes what `grounded-attention regions extract` takes: a file of boxes, and a list of their images."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grounded_attention.utils.whole_files import write_text

from .errors import DataError


def write_boxes(path: str | os.PathLike[str], records: Mapping[str, Mapping[str, Any]]) -> None:
    """Image id -> {"boxes": [[x1, y1, x2, y2]] in pixels, "scores": ...} as one object, or as lines for .jsonl.

    The file is there at once and whole, see [`read_boxes`].
    """
    path = Path(path)
    if path.suffix == ".jsonl":
        lines = (json.dumps({"image_id": image_id, **record}) for image_id, record in records.items())
        write_text(path, "".join(f"{line}\n" for line in lines))
    else:
        write_text(path, json.dumps(records))


def write_image_list(path: str | os.PathLike[str], files: Mapping[str, Path]) -> None:
    """Image id -> file, as lines of id, tab and path, see [`list_images`].

    Relative paths are taken from the list's folder, so absolute ones are written.

    Raises:
        DataError: An id or a path that does not fit into a line.
    """
    lines = [f"{image_id}\t{file.resolve()}" for image_id, file in files.items()]
    for line in lines:
        if line.count("\t") > 1 or "\n" in line or "\r" in line:
            raise DataError("a tab or line end in the name of an image", file=path, found=line)
    write_text(Path(path), "".join(f"{line}\n" for line in lines))

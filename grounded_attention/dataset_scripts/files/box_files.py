# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writers of the inputs of `grounded-attention regions extract`: a file of boxes, and a list of images."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grounded_attention.utils.whole_files import write_text

from .errors import DataError


def write_boxes(path: str | os.PathLike[str], records: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes the boxes of images as one JSON object, or as JSON lines if the file ends in .jsonl.

    The file appears under its name only when it is complete. [`read_boxes`] reads it.
    """
    path = Path(path)
    if path.suffix == ".jsonl":
        lines = (json.dumps({"image_id": image_id, **record}) for image_id, record in records.items())
        write_text(path, "".join(f"{line}\n" for line in lines))
    else:
        write_text(path, json.dumps(records))


def write_image_list(path: str | os.PathLike[str], files: Mapping[str, Path]) -> None:
    """Writes a list of images: one line an image, its id, a tab and its absolute path.

    [`list_images`] reads it; it resolves relative paths from the list's folder, therefore absolute ones are written.
    """
    lines = [f"{image_id}\t{file.resolve()}" for image_id, file in files.items()]
    for line in lines:
        if line.count("\t") > 1 or "\n" in line or "\r" in line:
            raise DataError("the id or path of an image contains a tab or a line end", file=path, found=line)
    write_text(Path(path), "".join(f"{line}\n" for line in lines))

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Which images to read: all in a folder, or those a list names."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .errors import DataError
from .streaming import text_lines

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_LIST = "one image a line, its path alone or after its id and a tab"


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image that is to be read, and its id."""

    image_id: str
    path: Path


def list_images(source: str | os.PathLike[str]) -> list[ImageFile]:
    """The images of a folder and its subfolders in the order of their paths, or those of a list in its order.

    In a folder every file with the suffix of an image counts, and its id is the file name without the suffix. A list
    is a text file: each line holds the path of an image, relative to the list's folder, and may put an id and a tab
    before it. Empty lines are left out. Whether a listed image exists shows when it is read.

    Raises:
        MissingFileError: `source` is neither a folder nor a file.
        DataError: there is no image, an id is empty, or two images have one id.
    """
    source = Path(source)
    if source.is_dir():
        paths = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
        images = [ImageFile(path.stem, path) for path in paths]
    else:
        images = [_listed(source, number, line) for number, line in text_lines(source, _LIST) if line.strip()]
    if not images:
        expected = f"files that end in {', '.join(SUFFIXES)}" if source.is_dir() else _LIST
        raise DataError("no images", file=source, expected=expected)
    _check_distinct(source, images)
    return images


def _listed(source: Path, number: int, line: str) -> ImageFile:
    image_id, tab, path = line.partition("\t")
    path = (path if tab else line).strip()
    image_id = image_id.strip() if tab else Path(path).stem
    if not image_id or not path or "\t" in path:
        raise DataError("not an image", file=source, where=f"line {number}", found=line, expected=_LIST)
    return ImageFile(image_id, source.parent / path)


def _check_distinct(source: Path, images: Iterable[ImageFile]) -> None:
    paths: dict[str, Path] = {}
    folder = source if source.is_dir() else source.parent  # both names are to be seen, however long its path
    for image in images:
        if image.image_id in paths:
            found = " and ".join(os.path.relpath(path, folder) for path in (paths[image.image_id], image.path))
            hint = "name the images in a list: one a line, id, tab, path"
            raise DataError(
                "two images have one id", file=source, where=f"id {image.image_id}", found=found, hint=hint
            )
        paths[image.image_id] = image.path

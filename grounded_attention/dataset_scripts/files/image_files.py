# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Images to read: all images of a folder, or the images of a list."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .errors import DataError
from .streaming import text_lines

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_EXPECTED = "one image a line: its path, or its id, a tab and its path"


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image to read."""

    image_id: str
    path: Path


def list_images(source: str | os.PathLike[str]) -> list[ImageFile]:
    """Lists the images of a folder and its subfolders, sorted by path, or the images of a list in its order.

    In a folder every file with the suffix of an image counts, and its id is the file name without the suffix. A list
    is a text file. Each line holds the path of an image, relative to the list's folder; an id and a tab may precede
    it. Empty lines are skipped. The function does not check whether a listed image exists.
    """
    source = Path(source)
    if source.is_dir():
        paths = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
        images = [ImageFile(path.stem, path) for path in paths]
    else:
        images = [_parse_line(source, number, line) for number, line in text_lines(source, _EXPECTED) if line.strip()]
    if not images:
        expected = f"files that end in {', '.join(SUFFIXES)}" if source.is_dir() else _EXPECTED
        raise DataError("no images", file=source, expected=expected)
    _check_distinct(source, images)
    return images


def _parse_line(source: Path, number: int, line: str) -> ImageFile:
    """Parses one line of a list of images."""
    image_id, tab, path = line.partition("\t")
    path = (path if tab else line).strip()
    image_id = image_id.strip() if tab else Path(path).stem
    if not image_id or not path or "\t" in path:
        raise DataError("not an image", file=source, where=f"line {number}", found=line, expected=_EXPECTED)
    return ImageFile(image_id, source.parent / path)


def _check_distinct(source: Path, images: Iterable[ImageFile]) -> None:
    paths: dict[str, Path] = {}
    folder = source if source.is_dir() else source.parent  # short paths, so that the message shows both
    for image in images:
        if image.image_id in paths:
            found = " and ".join(os.path.relpath(path, folder) for path in (paths[image.image_id], image.path))
            hint = "give the images as a list instead: one a line, id, tab, path"
            raise DataError(
                "two images have the same id", file=source, where=f"id {image.image_id}", found=found, hint=hint
            )
        paths[image.image_id] = image.path

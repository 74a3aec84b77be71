# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Images to read: all images of a folder, or the images of a list; and lists of image ids."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from grounded_attention.utils.named_types import AnyPath

from .errors import DataError, refuse_if
from .records import text_lines

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_EXPECTED = "one image a line: its path, or its id, a tab and its path"


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image to read."""

    image_id: str
    path: Path


def list_images(source: AnyPath) -> list[ImageFile]:
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
    refuse_if(
        not image_id or not path or "\t" in path,
        "not an image",
        file=source,
        where=f"line {number}",
        found=line,
        expected=_EXPECTED,
    )
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


_COCO = re.compile(r"(?:.*_)?([0-9]{12})(?:_[0-9]+)?")
_NUMBER = re.compile(r"([0-9]+)(?:\.0)?")
_QUOTED = re.compile(r"""b?(["'])(.*)\1""")


def read_ids(path: str | Path) -> set[str]:
    """Reads a list of image ids."""
    ids = set()
    for number, line in text_lines(Path(path), "expected a list of image ids, one a line"):
        words = line.split()
        refuse_if(
            len(words) > 1,
            "the line has several words",
            file=path,
            where=f"line {number}",
            found=line,
            expected="one id a line",
        )
        ids.update(words)
    refuse_if(not ids, "the list of images is empty", file=path, expected="image ids, one a line")
    return ids


def list_files(names: AnyPath | Sequence[AnyPath] | None) -> list[Path]:
    """Returns the files of an option: one path, several separated by commas, as `a.txt,b.txt` or `[a.txt, b.txt]`."""
    if isinstance(names, (str, os.PathLike)):
        text = os.fspath(names)
        if Path(text).exists():
            names = [text]
        else:
            names = [part.strip(" \"'") for part in text.strip(" []").split(",")]
    return [Path(path) for path in names or () if path]


def image_key(image_id: str) -> str:
    """Returns what all spellings of an image have in common: quotes, folders, suffix and zeros in front do not count.

    The number of a COCO image, twelve digits with or without `COCO_val2014_`, is marked, since other numbers may be
    those of other images: `COCO_val2014_000000000042.jpg` is `coco:42`, and `42` is `42`.
    """
    quoted = _QUOTED.fullmatch(image_id)
    name = PurePosixPath(quoted[2] if quoted else image_id)
    if name.suffix.lower() in SUFFIXES:
        stem = name.stem
    else:
        stem = name.name
    coco = _COCO.fullmatch(stem)
    if coco:
        return f"coco:{int(coco[1])}"
    number = _NUMBER.fullmatch(stem)
    if number:
        return str(int(number[1]))
    return stem


def image_keys(image_id: str) -> set[str]:
    """Returns the keys of an image of a data set; one of COCO may also be listed by its number alone."""
    key = image_key(image_id)
    return {key, key.removeprefix("coco:")}


class ImageLists:
    """The images of the lists in [`list_files`] of an option, in any spelling; errors as of [`read_ids`]."""

    def __init__(self, files: AnyPath | Sequence[AnyPath] | None) -> None:
        self._keys = {file: {image_key(each): each for each in read_ids(file)} for file in list_files(files)}
        self._unseen, self._example = set(self._keys), ""

    def __contains__(self, image_id: Any) -> bool:
        keys, self._example = image_keys(image_id), self._example or image_id
        listing = [file for file, listed in self._keys.items() if not listed.keys().isdisjoint(keys)]
        self._unseen.difference_update(listing)
        return bool(listing)

    def check_found(self) -> None:
        """Raises a `DataError`, after the rows were read, for a list without any image of them."""
        for file in self._keys:
            if file in self._unseen:
                found = min(self._keys[file].values())
                expected = f"ids such as {self._example!r}"
                hint = "correct the list, or give none"
                raise DataError(
                    "no image of the list is in the data", file=file, found=found, expected=expected, hint=hint
                )

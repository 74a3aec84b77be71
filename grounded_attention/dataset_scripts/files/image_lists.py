# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Lists of image ids: text files with one id a line."""

import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from .errors import DataError, refuse_if
from .image_files import SUFFIXES
from .streaming import text_lines

_COCO = re.compile(r"(?:.*_)?([0-9]{12})(?:_[0-9]+)?")
_NUMBER = re.compile(r"([0-9]+)(?:\.0)?")
_QUOTED = re.compile(r"""b?(["'])(.*)\1""")


def read_ids(path: str | Path) -> set[str]:
    """Reads a list of image ids."""
    ids = set()
    for number, line in text_lines(Path(path), "expected a list of image ids, one a line"):
        words = line.split()
        if len(words) > 1:
            raise DataError(
                "the line has several words", file=path, where=f"line {number}", found=line, expected="one id a line"
            )
        ids.update(words)
    refuse_if(not ids, "the list of images is empty", file=path, expected="image ids, one a line")
    return ids


def list_files(given: str | os.PathLike[str] | Sequence[str] | None) -> list[Path]:
    """Returns the files of an option: one path, several separated by commas, as `a.txt,b.txt` or `[a.txt, b.txt]`."""
    if isinstance(given, (str, os.PathLike)):
        text = os.fspath(given)
        given = [text] if Path(text).exists() else [part.strip(" \"'") for part in text.strip(" []").split(",")]
    return [Path(path) for path in given or () if path]


def image_key(image_id: str) -> str:
    """Returns what all spellings of an image have in common: quotes, folders, suffix and zeros in front do not count.

    The number of a COCO image, twelve digits with or without `COCO_val2014_`, is marked, since other numbers may be
    those of other images: `COCO_val2014_000000000042.jpg` is `coco:42`, and `42` is `42`.
    """
    quoted = _QUOTED.fullmatch(image_id)
    name = PurePosixPath(quoted[2] if quoted else image_id)
    stem = name.stem if name.suffix.lower() in SUFFIXES else name.name
    if coco := _COCO.fullmatch(stem):
        return f"coco:{int(coco[1])}"
    number = _NUMBER.fullmatch(stem)
    return str(int(number[1])) if number else stem


def image_keys(image_id: str) -> set[str]:
    """Returns the keys of an image of a data set; one of COCO may also be listed by its number alone."""
    key = image_key(image_id)
    return {key, key.removeprefix("coco:")}


class ImageLists:
    """The images of the lists in [`list_files`] of an option, in any spelling; errors as of [`read_ids`]."""

    def __init__(self, given: str | os.PathLike[str] | Sequence[str] | None) -> None:
        self._keys = {file: {image_key(each): each for each in read_ids(file)} for file in list_files(given)}
        self._unseen, self._example = set(self._keys), ""

    def __contains__(self, image_id: Any) -> bool:
        keys, self._example = image_keys(image_id), self._example or image_id
        found = [file for file, listed in self._keys.items() if not listed.keys().isdisjoint(keys)]
        self._unseen.difference_update(found)
        return bool(found)

    def check_found(self) -> None:
        """Raises a `DataError`, after the rows were read, for a list without any image of them."""
        for file in self._keys:
            if file in self._unseen:
                found, expected = min(self._keys[file].values()), f"ids such as {self._example!r}"
                hint = "correct the list, or give none"
                raise DataError(
                    "no image of the list is in the data", file=file, found=found, expected=expected, hint=hint
                )

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The images of files in COCO's format: number, id and name."""

from pathlib import PurePosixPath

from grounded_attention.dataset_scripts.files.records import Record

IMAGE_ID_FORMATS = ("number", "file_stem")


class ImageNames:
    """Reads number, id and file name of the images of a file in COCO's format; each of an image's names is its own."""

    def __init__(self, by_stem: bool) -> None:
        self._by_stem = by_stem
        self._numbers: set[int] = set()
        self._ids: set[str] = set()

    def read(self, record: Record) -> tuple[int, str, str]:
        """Returns number, id and file name of an image."""
        number, name = record.integer("id"), record.non_empty_text("file_name")
        image_id = image_id_of(number, name, self._by_stem)
        record.add_once(number, self._numbers, "the image occurs twice")
        expected = "file names with stems of their own, or the image id format number"
        record.add_once(image_id, self._ids, "two images have the same id", expected)
        return number, image_id, name


def image_id_of(number: int, file_name: str, by_stem: bool) -> str:
    """Returns the id of an image: its number, or the stem of its file."""
    return PurePosixPath(file_name).stem if by_stem else str(number)

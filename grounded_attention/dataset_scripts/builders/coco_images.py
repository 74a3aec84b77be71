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
        if number in self._numbers:
            raise record.error("the image occurs twice", found=number)
        if image_id in self._ids:
            expected = "file names with stems of their own, or the image id format number"
            raise record.error("two images have the same id", found=image_id, expected=expected)
        self._numbers.add(number)
        self._ids.add(image_id)
        return number, image_id, name


def image_id_of(number: int, file_name: str, by_stem: bool) -> str:
    """Returns the id of an image: its number, or the stem of its file."""
    return PurePosixPath(file_name).stem if by_stem else str(number)

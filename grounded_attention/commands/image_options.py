# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Shared by commands that read folders of images."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from grounded_attention.utils.safe_paths import path_below

SUFFIXES = (".jpg", ".jpeg", ".png")


def folder_pictures(folder: str | Path) -> Callable[[str], Any]:
    """Returns a function from an image id to its picture in a folder, a .jpg, .jpeg or .png file."""
    from grounded_attention.utils.open_images import open_image

    def open_picture(image_id: str) -> Any:
        paths = [path_below(folder, f"{image_id}{suffix}") for suffix in SUFFIXES]
        return open_image(next((path for path in paths if path.is_file()), paths[0]))

    return open_picture


def check_pictures(folder: str | Path, image_ids: Iterable[str]) -> None:
    """Checks that a folder has the picture of each image, before any work is done."""
    wanted = dict.fromkeys(image_ids)
    missing = [
        image_id
        for image_id in wanted
        if not any(path_below(folder, f"{image_id}{suffix}").is_file() for suffix in SUFFIXES)
    ]
    if missing:
        raise ValueError(
            f"--images {folder}: {len(missing)} of {len(wanted)} images are missing, the first is {missing[0]}; "
            f"expected {missing[0]}{', '.join(SUFFIXES)}"
        )

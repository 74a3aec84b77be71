# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What of a record looks like boxes, points, masks or marks and was not read: none is passed over in silence."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from PIL import Image

from grounded_attention.dataset_scripts.files.image_files import SUFFIXES

from .columns import IMAGE_NAMES, Columns
from .raw import RawRow, RowError, named_sides, structured

UNREAD = "it looks like boxes, points, masks or marks and is not read"
_NAME = re.compile(
    r"box|rect|polygon|quad|outline|contour|points?(?![a-z])|coordinate|region|geometry|trace|\b(?:roi|rois|corners)\b",
    re.IGNORECASE,
)
_MASK = re.compile(r"mask|segmentation|\brles?\b|polygon", re.IGNORECASE)
_MARK = re.compile(r"<\|?(?:box|quad|det|point|points|loc_?\d+|patch_index_\d+)(?:_start)?[\s|>]")
_LOOKED_AT = 64  # entries of a list


def unread_places(record: Columns, made: Sequence[RawRow]) -> list[str]:
    """The columns that say where something is, of a record whose rows have no box; else those of masks, of rows that
    have no mask.
    """
    phrases = [phrase for row in made for phrase in row.phrases]
    if any(each.mask is not None or any(box.mask is not None for box in each.boxes) for each in phrases):
        return []
    names = dict.fromkeys(_places({key: each for key, each in record.items() if key not in IMAGE_NAMES}, ""))
    has_boxes = any(each.boxes or each.regions is not None for each in phrases)
    return [name for name in names if not has_boxes or _MASK.search(name.rpartition(".")[2])]


def _places(value: Any, name: str) -> Iterator[str]:
    last = name.rpartition(".")[2]
    if isinstance(value, str):
        with suppress(RowError):
            value = structured(value, name)
    if isinstance(value, dict):
        if named_sides(value) or None not in (value.get("x"), value.get("y")):
            yield name or "columns of sides"
        if value.get("bytes") and (_MASK.search(last) or last == "gt"):
            yield name
        for key, each in value.items():
            yield from _places(each, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and value and all(isinstance(each, (int, float)) for each in value):
        if len(value) in (4, 8) or ((_NAME.search(last) or _MASK.search(last)) and len(value) > 1):
            yield name
    elif isinstance(value, list):
        for each in value[:_LOOKED_AT]:
            yield from _places(each, name)
    elif isinstance(value, str):
        is_file = last == "gt" and value.lower().endswith(SUFFIXES)
        if _MARK.search(value) or is_file or (_MASK.search(last) and len(value.split()) == 1):
            yield name
    elif _MASK.search(last) and isinstance(value, (bytes, np.ndarray, Image.Image)):
        yield name

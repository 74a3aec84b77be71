# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One row a caption, from the rows of any builder with captions."""

from collections.abc import Mapping, Sequence
from typing import Any

import datasets

KEPT = ("image_id", "file_name")


def to_rows(split: datasets.Dataset) -> datasets.Dataset:
    """One row a caption, `image_id`, `caption_id`, `text`, from rows of any builder with captions.

    Takes rows that have these columns; rows of an image with `captions`, of which those marked as unrelated are left
    out; or rows of an image with described `regions`.

    Raises:
        ValueError: the rows have no captions of any of these kinds.
    """
    columns = split.column_names
    if {"caption_id", "text"} <= set(columns):
        return split.select_columns([name for name in columns if name in (*KEPT, "caption_id", "text")])
    for nested, key in (("captions", "caption_id"), ("regions", "region_id")):
        if nested in columns:
            arguments = {"nested": nested, "key": key}
            return split.map(_flatten, fn_kwargs=arguments, batched=True, remove_columns=columns)
    raise ValueError(
        f"the rows have the columns {', '.join(columns)}; pre-training needs text, captions or regions with phrases"
    )


def _flatten(images: Mapping[str, Sequence[Any]], nested: str, key: str) -> dict[str, list]:
    found = [
        (image, str(caption[key]), caption["text"])
        for image, captions in enumerate(images[nested])
        for caption in captions
        if caption.get("related", True)
    ]
    kept = [name for name in KEPT if name in images]
    rows = {name: [images[name][image] for image, _, _ in found] for name in kept}
    return {**rows, "caption_id": [key for _, key, _ in found], "text": [text for _, _, text in found]}

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Converts the rows of any builder with captions to one row per caption."""

from collections.abc import Mapping, Sequence
from typing import Any

import datasets

KEPT = ("image_id", "file_name")
CAPTION = ("caption_id", "text", "answers")


def to_rows(split: datasets.Dataset) -> datasets.Dataset:
    """Makes one row per caption: `image_id`, `caption_id`, `text`, and `answers` where the rows have them.

    Args:
        split (`datasets.Dataset`): rows with these columns, and perhaps the `answers` to questions; or one row per
            image with `captions`, of which unrelated captions are left out; or one row per image with `regions` that
            have descriptions.

    Returns:
        `datasets.Dataset`: the rows.

    Raises:
        ValueError: if the rows have no captions in any of these forms.
    """
    columns = split.column_names
    if {"caption_id", "text"} <= set(columns):
        return split.select_columns([name for name in columns if name in (*KEPT, *CAPTION)])
    for nested, key in (("captions", "caption_id"), ("regions", "region_id")):
        if nested in columns:
            arguments = {"nested": nested, "key": key}
            return split.map(_flatten, fn_kwargs=arguments, batched=True, remove_columns=columns)
    raise ValueError(
        f"the rows have the columns {', '.join(columns)}; pre-training needs text, captions or regions with phrases: "
        "give another data.builder"
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

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Converts the rows of any builder with captions to one row per caption."""

from collections.abc import Mapping, Sequence
from typing import Any

import datasets

KEPT = ("image_id", "file_name", "width", "height")
CAPTION = ("caption_id", "text", "answers")


def to_rows(split: datasets.Dataset, grounded: bool = False) -> datasets.Dataset:
    """One row a caption: `image_id`, `caption_id`, `text`, and `answers` and sizes if the rows have them.

    `grounded`: also their `phrases`, if the split has phrases with boxes. These are the phrases with at least one box,
    `{text, start, end, boxes}`, of rows with `captions` and `entities` (Flickr30K Entities), or the column `phrases`
    of rows that have one row per caption.
    """
    columns = split.column_names
    if {"caption_id", "text"} <= set(columns):
        wanted = (*KEPT, *CAPTION, "phrases") if grounded else (*KEPT, *CAPTION)
        return split.select_columns([name for name in columns if name in wanted])
    for nested, key in (("captions", "caption_id"), ("regions", "region_id")):
        if nested in columns:
            arguments: dict[str, Any] = {"nested": nested, "key": key}
            if grounded and nested == "captions" and "entities" in columns:
                arguments["grounded"] = True
            return split.map(_flatten, fn_kwargs=arguments, batched=True, remove_columns=columns)
    raise ValueError(
        f"the rows have the columns {', '.join(columns)}; pre-training needs text, captions or regions with phrases: "
        "give another data.builder"
    )


def _flatten(images: Mapping[str, Sequence[Any]], nested: str, key: str, grounded: bool = False) -> dict[str, list]:
    pairs = [
        (image, caption)
        for image, captions in enumerate(images[nested])
        for caption in captions
        if caption.get("related", True)
    ]
    kept = [name for name in KEPT if name in images]
    rows = {name: [images[name][image] for image, _ in pairs] for name in kept}
    rows |= {"caption_id": [str(caption[key]) for _, caption in pairs], "text": [each["text"] for _, each in pairs]}
    if not grounded:
        return rows
    boxes = [{entity["entity_id"]: entity["boxes"] for entity in entities} for entities in images["entities"]]
    return {**rows, "phrases": [phrases_with_boxes(caption, boxes[image]) for image, caption in pairs]}


def phrases_with_boxes(
    caption: Mapping[str, Any], boxes: Mapping[str, Sequence[Any]], fields: Sequence[str] = ("text", "start", "end")
) -> list[dict[str, Any]]:
    """The phrases of a caption of Flickr30K Entities that have boxes (entity -> boxes), with `fields` and `boxes`."""
    return [
        {**{name: phrase[name] for name in fields}, "boxes": gold}
        for phrase in caption["phrases"]
        if (gold := boxes.get(phrase["entity_id"]))
    ]

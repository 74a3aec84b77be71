# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One row a caption, of rows with several captions of an image."""

from collections.abc import Mapping, Sequence
from typing import Any

import datasets

from grounded_attention.utils.named_types import Fields, Row

KEPT = ("image_id", "file_name", "width", "height")
CAPTION = ("caption_id", "text", "answers")
PHRASE = ("text", "start", "end", "types")


def to_rows(
    split: datasets.Dataset, grounded: bool = False, bare: bool = True, kept: Sequence[str] = KEPT
) -> datasets.Dataset:
    """One row a caption that describes its image: `image_id`, `caption_id`, `text`, and the `kept` columns.

    `grounded`: also those of its `phrases` that have boxes, if the rows have phrases. `bare`: also captions without
    such phrases.
    """
    columns = split.column_names
    if {"caption_id", "text"} <= set(columns):
        if grounded:
            wanted = (*kept, *CAPTION, "phrases")
        else:
            wanted = (*kept, *CAPTION)
        return split.select_columns([name for name in columns if name in wanted])
    if "captions" not in columns:
        raise ValueError(
            f"the rows have the columns {', '.join(columns)}; pre-training needs text or captions: give another "
            "data.builder"
        )
    arguments = {
        "kept": [name for name in kept if name in columns],
        "grounded": grounded and "phrases" in columns,
        "bare": bare,
    }
    return split.map(_flatten, fn_kwargs=arguments, batched=True, batch_size=100, remove_columns=columns)


def _flatten(images: Mapping[str, Sequence[Any]], kept: Sequence[str], grounded: bool, bare: bool) -> dict[str, list]:
    names = [*kept, "caption_id", "text", *(["phrases"] if grounded else [])]
    rows: dict[str, list] = {name: [] for name in names}
    for values in zip(*images.values(), strict=True):
        image = dict(zip(images, values, strict=True))
        for number, text in enumerate(image["captions"]):
            phrases = phrases_of(image, number) if grounded else []
            if not (image.get("related") or [True] * (number + 1))[number] or not (phrases or bare):
                continue
            caption = {"caption_id": image["caption_ids"][number], "text": text, "phrases": phrases}
            if "example_id" in image:  # a caption may be in several examples
                caption["caption_id"] = f"{image['example_id']}:{number}"
            for name in names:
                rows[name].append(caption[name] if name in caption else image[name])
    return rows


def phrases_of(row: Row, sentence: int) -> list[Fields]:
    """The phrases of a text of a row that have boxes, as those of a row with this text alone."""
    own = []
    for each in row["phrases"]:
        if each["sentence"] == sentence and each["boxes"]:
            own.append(
                {**{name: each[name] for name in PHRASE if name in each}, "sentence": 0, "boxes": each["boxes"]}
            )
    return own

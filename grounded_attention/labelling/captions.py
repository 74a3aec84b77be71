# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The captions to label: one row per caption of any builder, with the annotated phrases where the rows have them."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import datasets
from datasets import List, Value

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.tasks.caption_rows import to_rows

# Entities without boxes have no place in the image, so their phrases are not labelled either.
FEATURES = datasets.Features(
    {
        "caption_id": Value("string"),
        "image_id": Value("string"),
        "file_name": Value("string"),
        "text": Value("string"),
        "width": Value("int32"),
        "height": Value("int32"),
        "given": List(
            {
                "text": Value("string"),
                "start": Value("int32"),
                "end": Value("int32"),
                "boxes": List(List(Value("float32"))),
            }
        ),
        "objects": List(List(Value("float32"))),
    }
)


def caption_rows(splits: Mapping[str, datasets.Dataset], limit: int | None = None) -> datasets.Dataset:
    """Makes one row per caption of all splits, the first `limit`, in their order, with the columns of `FEATURES`."""
    rows = datasets.concatenate_datasets([_of_split(split) for split in splits.values()])
    if limit is not None:
        rows = rows.select(range(min(limit, len(rows))))
    if not len(rows):
        raise DataError("the splits have no captions", found=list(splits))
    if len(rows.unique("caption_id")) < len(rows):
        seen: set[str] = set()
        twice = next(each for each in rows["caption_id"] if each in seen or seen.add(each))  # type: ignore[func-returns-value]
        raise DataError("two captions have the same id", found=twice, hint="label the splits in different folders")
    return rows


def _of_split(split: datasets.Dataset) -> datasets.Dataset:
    annotated = {"captions", "entities"} <= set(split.column_names)
    rows = split if annotated else to_rows(split)
    convert = _annotated if annotated else _plain
    return rows.map(convert, batched=True, batch_size=100, remove_columns=rows.column_names, features=FEATURES)


def _plain(rows: Mapping[str, Sequence[Any]]) -> dict[str, list]:
    count = len(rows["caption_id"])
    converted = {name: list(rows.get(name) or [None] * count) for name in FEATURES}
    return {**converted, "caption_id": [str(each) for each in rows["caption_id"]]}


def _annotated(images: Mapping[str, Sequence[Any]]) -> dict[str, list]:
    columns: dict[str, list] = {name: [] for name in FEATURES}
    for place, captions in enumerate(images["captions"]):
        boxes = {entity["entity_id"]: entity["boxes"] for entity in images["entities"][place]}
        objects = list(dict.fromkeys(tuple(box) for each in boxes.values() for box in each))
        for caption in captions:
            if not caption.get("related", True):
                continue
            annotated = [
                {name: phrase[name] for name in ("text", "start", "end")} | {"boxes": boxes[phrase["entity_id"]]}
                for phrase in caption["phrases"]
                if boxes.get(phrase["entity_id"])
            ]
            image = {
                name: images[name][place] for name in ("image_id", "file_name", "width", "height") if name in images
            }
            row = {**image, "caption_id": caption["caption_id"], "text": caption["text"]}
            row |= {"given": annotated, "objects": objects}
            for name in FEATURES:
                columns[name].append(row.get(name))
    return columns


def captions_digest(rows: datasets.Dataset) -> str:
    """Computes a hash of ids, images and texts of all captions."""
    digest = hashlib.blake2b(digest_size=16)
    for batch in rows.select_columns(["caption_id", "image_id", "text"]).iter(batch_size=1000):
        for values in zip(*batch.values(), strict=True):
            digest.update("\0".join(values).encode() + b"\n")
    return digest.hexdigest()

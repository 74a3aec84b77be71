# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The captions to label: one row per caption of any builder, with the annotated phrases where the rows have them."""

import hashlib
from collections.abc import Mapping

import datasets

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.tasks.caption_rows import KEPT, to_rows


def caption_rows(splits: Mapping[str, datasets.Dataset], limit: int | None = None) -> datasets.Dataset:
    """Makes one row per caption of all splits, the first `limit`, in their order."""
    rows = datasets.concatenate_datasets(
        [to_rows(split, grounded=True, kept=(*KEPT, "objects")) for split in splits.values()]
    )
    if limit is not None:
        rows = rows.select(range(min(limit, len(rows))))
    if not len(rows):
        raise DataError("the splits have no captions", found=list(splits))
    if len(rows.unique("caption_id")) < len(rows):
        seen: set[str] = set()
        twice = next(each for each in rows["caption_id"] if each in seen or seen.add(each))  # type: ignore[func-returns-value]
        raise DataError("two captions have the same id", found=twice, hint="label the splits in different folders")
    return rows


def captions_digest(rows: datasets.Dataset) -> str:
    """Computes a hash of ids, images and texts of all captions."""
    digest = hashlib.blake2b(digest_size=16)
    for batch in rows.select_columns(["caption_id", "image_id", "text"]).iter(batch_size=1000):
        for values in zip(*batch.values(), strict=True):
            digest.update("\0".join(values).encode() + b"\n")
    return digest.hexdigest()

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A row of a table of pseudo-labels: the phrases of one caption with their boxes and scores."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from grounded_attention.dataset_scripts.files.errors import DataError

# The keys of a `Phrase` (`processing/phrase.py`), so that a processor reads these rows as they are.
_PHRASE = pa.struct(
    {
        "text": pa.string(),
        "start": pa.int32(),
        "end": pa.int32(),
        "boxes": pa.list_(pa.list_(pa.float32())),
        "scores": pa.list_(pa.float32()),
    }
)
SCHEMA = pa.schema(
    {
        "caption_id": pa.string(),
        "image_id": pa.string(),
        "width": pa.int32(),
        "height": pa.int32(),
        "phrases": pa.list_(_PHRASE),
        "not_found": pa.int32(),
    }
)


@dataclass
class CaptionLabels:
    """The labels of one caption."""

    caption_id: str
    image_id: str
    width: int
    height: int
    phrases: list[dict[str, Any]] = field(default_factory=list)
    not_found: int = 0


def check_labels(labels: CaptionLabels, text: str | None = None) -> None:
    """Checks the labels of a caption."""
    where = f"caption {labels.caption_id}"
    for phrase in labels.phrases:
        check_phrase(phrase, text, where)
        boxes, scores = phrase["boxes"], phrase["scores"]
        if len(boxes) != len(scores):
            problem = f"the phrase {phrase['text']!r} has {len(boxes)} boxes and {len(scores)} scores"
            raise DataError(problem, where=where, expected="one score for each box")
        for box, score in zip(boxes, scores, strict=True):
            _check_box(box, phrase["text"], where)
            if not 0 < score < 1:
                problem = f"score of the phrase {phrase['text']!r}"
                raise DataError(problem, where=where, found=score, expected="a number in (0, 1)")


def check_phrase(phrase: Mapping[str, Any], text: str | None, where: str) -> None:
    """Checks that a phrase is in its caption."""
    start, end = phrase["start"], phrase["end"]
    inside = 0 <= start < end and (text is None or end <= len(text))
    if inside and phrase["text"] == (phrase["text"] if text is None else text[start:end]) and phrase["text"]:
        return
    caption = "" if text is None else f" {text!r}"
    problem = f"the phrase {phrase['text']!r} is not in its caption{caption}"
    place = f"characters {start} to {end}" + (f": {text[start:end]!r}" if text is not None and inside else "")
    hint = "the labels were made for another text; label the captions again"
    raise DataError(f"{problem}, found {place}", where=where, hint=hint)


def _check_box(box: Sequence[float], phrase: str, where: str) -> None:
    good = len(box) == 4 and all(map(math.isfinite, box))
    if good and 0 <= box[0] < box[2] <= 1 and 0 <= box[1] < box[3] <= 1:
        return
    problem = f"box of the phrase {phrase!r} is outside the image or has no area"
    raise DataError(problem, where=where, found=list(box), expected="x1 < x2 and y1 < y2 in [0, 1]")


def to_arrow(rows: Sequence[CaptionLabels]) -> pa.Table:
    """Converts rows to an Arrow table with the schema `SCHEMA`."""
    return pa.table({name: [getattr(row, name) for row in rows] for name in SCHEMA.names}, schema=SCHEMA)

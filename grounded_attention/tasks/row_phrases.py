# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The phrases of caption rows in the form of the processor."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def row_phrases(
    rows: Sequence[Mapping[str, Any]], related: Sequence[int] | None = None
) -> list[list[dict[str, Any]]] | None:
    """Returns the phrases of each row, as the processor takes them; those of an exchanged caption are left out."""
    if "phrases" not in rows[0]:
        return None
    kept = [True] * len(rows) if related is None else [bool(label) for label in related]
    return [phrases_of_text(row["phrases"], 0) if keep else [] for row, keep in zip(rows, kept, strict=True)]


def phrases_of_text(phrases: Iterable[Mapping[str, Any]] | None, sentence: int) -> list[dict[str, Any]]:
    """Returns the phrases of a caption, which is this text of an example, as the processor takes them."""
    left_out = ("text", "sentence", "caption", "message")  # the last two in rows of earlier versions
    return [
        {**{key: value for key, value in each.items() if key not in left_out}, "sentence": sentence}
        for each in phrases or ()
    ]

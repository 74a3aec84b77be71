# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The phrases of caption rows in the form of the processor."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grounded_attention.processing.phrase_grounding import check_phrase_keys


def row_phrases(
    rows: Sequence[Mapping[str, Any]], related: Sequence[int] | None = None
) -> list[list[dict[str, Any]]] | None:
    """Returns the phrases of each row, as the processor takes them; those of an exchanged caption are left out.

    Args:
        rows (`Sequence[Mapping[str, Any]]`): rows, perhaps with `phrases`: `{text, start, end, boxes}` and optionally
            `scores`, one number for each box.
        related (`Sequence[int]`, *optional*): 0 for a row whose caption was exchanged; None if none was.

    Returns:
        `list[list[dict[str, Any]]] | None`: the phrases; None if the rows have none.
    """
    if "phrases" not in rows[0]:
        return None
    kept = [True] * len(rows) if related is None else [bool(label) for label in related]
    return [phrases_of_text(row["phrases"], 0) if keep else [] for row, keep in zip(rows, kept, strict=True)]


def phrases_of_text(phrases: Iterable[Mapping[str, Any]] | None, text: int) -> list[dict[str, Any]]:
    """Returns the phrases of a caption, which is text 0 or 1 of an example, as the processor takes them."""
    wanted = ("start", "end", "boxes", "scores")
    known = [check_phrase_keys(each, f"phrase {each.get('text')!r}") for each in phrases or ()]
    return [{"text": text, **{name: each.get(name) for name in wanted}} for each in known]

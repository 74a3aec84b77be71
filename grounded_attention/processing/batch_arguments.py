# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Converts the arguments of one example or of a batch to those of a batch, and checks their number."""

from collections.abc import Sequence
from typing import Any


def as_batch(
    text: str | Sequence[str], text_pair: str | Sequence[str | None] | None, given: dict[str, Any]
) -> tuple[list[list[str]], list[int], dict[str, Any]]:
    """Converts arguments to those of a batch of B examples."""
    if isinstance(text, str):
        images = given["images"]
        text, text_pair = [text], None if text_pair is None else [text_pair]  # type: ignore[list-item]
        given = {name: None if value is None else [value] for name, value in given.items()}
        # Other processors accept a list of one image as well as the image.
        given["images"] = list(images) if isinstance(images, (list, tuple)) else given["images"]
    _check_texts("text", text, (str,))
    _check_texts("text_pair", [] if text_pair is None else text_pair, (str, type(None)))
    if not len(text):
        raise ValueError("The batch is empty: `text` has no entry.")
    for name, value in {"text_pair": text_pair, **given}.items():
        if value is None:
            continue
        if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
            raise ValueError(f"{name}: {value!r:.60}, expected a list with an entry for each of {len(text)} texts.")
        if len(value) != len(text):
            raise ValueError(
                f"{name} has {len(value)} entries, but `text` has {len(text)}; expected one for each example."
            )
    if text_pair is None:
        return [list(text)], [1] * len(text), given
    return [list(text), [pair or "" for pair in text_pair]], [1 + (pair is not None) for pair in text_pair], given


def _check_texts(name: str, texts: Any, types: tuple[type, ...]) -> None:
    wrong = isinstance(texts, str) or not hasattr(texts, "__len__")
    if wrong or not all(isinstance(item, types) for item in texts):
        raise ValueError(f"{name} must be a str, or a list of str as `text` is; found {texts!r:.80}.")

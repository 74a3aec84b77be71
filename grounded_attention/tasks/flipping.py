# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Horizontal flips of pictures during training, for models that read pixels."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from grounded_attention.utils.masks import read_mask
from grounded_attention.utils.named_types import Columns, Fields, Span

OTHER_SIDE = {"left": "right", "right": "left"}
SIDE = re.compile(r"\b(?:left|right)\b", flags=re.IGNORECASE)


def flip_image(image: Image.Image) -> Image.Image:
    """Mirrors an image left to right."""
    return ImageOps.mirror(image)


def flip_boxes(boxes: Any) -> np.ndarray:
    """Converts normalised boxes to those of the mirrored image: x1, x2 become 1 - x2, 1 - x1.

    In pixels, the VL-BERT public code uses width - 1 - x, because its boxes include the last pixel.
    """
    array = np.asarray(boxes, dtype=np.float32)
    if array.size == 0:
        return array
    if array.shape[-1] != 4:
        raise ValueError(f"Boxes of shape {array.shape}, expected (..., 4): x1, y1, x2, y2.")
    flipped = array.copy()
    flipped[..., 0], flipped[..., 2] = 1 - array[..., 2], 1 - array[..., 0]
    return flipped


def swap_left_right(text: str) -> str:
    """Exchanges the words "left" and "right", whole words only, as the public code does for a flip."""
    return SIDE.sub(lambda match: _other(match.group()), text)


def swap_left_right_spans(text: str, spans: Sequence[Span]) -> tuple[str, list[Span]]:
    """Exchanges the words as [`swap_left_right`] does and moves character spans with them."""
    words = [(match.start(), match.end(), len(_other(match.group()))) for match in SIDE.finditer(text)]
    moved = []
    for start, end in spans:
        first = _move(start, words, is_end=False)
        moved.append((first, first if end == start else _move(end, words, is_end=True)))
    return swap_left_right(text), moved


def flip_phrases(texts: Sequence[str], phrases: Sequence[Columns]) -> tuple[list[str], list[Fields]]:
    """Mirrors texts and labelled phrases of one example, in the form of `VLBertProcessor`."""
    flipped = [{key: value for key, value in phrase.items() if key != "text"} for phrase in phrases]
    for phrase in flipped:
        spans = [(phrase["start"], phrase["end"])]
        ((phrase["start"], phrase["end"]),) = swap_left_right_spans(texts[phrase.get("sentence") or 0], spans)[1]
        if phrase.get("boxes") is not None:
            phrase["boxes"] = flip_boxes(phrase["boxes"]).tolist()
        if phrase.get("mask") is not None:
            phrase["mask"] = read_mask(phrase["mask"], "mask")[:, ::-1]
    return [swap_left_right(text) for text in texts], flipped


def _other(word: str) -> str:
    other = OTHER_SIDE[word.lower()]
    if word.isupper():
        return other.upper()
    if word == word.capitalize():
        return other.capitalize()
    return other


def _move(position: int, words: Sequence[tuple[int, int, int]], is_end: bool) -> int:
    """Returns the new position of a span's boundary after every (start, end) of `words` got its new length."""
    moved = position
    for start, end, length in words:
        if position >= end:
            moved += length - (end - start)
        elif position > start:
            moved -= max(0, position - start - (length if is_end else length - 1))
    return moved


def flip_some(
    texts: Sequence[str],
    regions: Sequence[Any] | None,
    images: Sequence[Any],
    generators: Sequence[np.random.Generator],
    probability: float,
    phrases: Sequence[Sequence[Columns]] | None = None,
) -> tuple[list[str], list[Any] | None, list[Any], list[Any] | None]:
    """Flips some pictures with their boxes and phrases, and exchanges "left" and "right" in their texts."""
    flips = [rng.random() < probability for rng in generators]
    moved = None
    if phrases is not None:
        moved = []
        for text, each, flip in zip(texts, phrases, flips, strict=True):
            moved.append(flip_phrases([text], each)[1] if flip else list(each))
    texts = [swap_left_right(text) if flip else text for text, flip in zip(texts, flips, strict=True)]
    images = [flip_image(image) if flip else image for image, flip in zip(images, flips, strict=True)]
    if regions is None:
        return texts, None, images, moved
    flipped = [replace(r, boxes=flip_boxes(r.boxes)) if flip else r for r, flip in zip(regions, flips, strict=True)]
    return texts, flipped, images, moved

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Horizontal flips of pictures during training, for models that read pixels."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grounded_attention.processing.horizontal_flip import flip_boxes, flip_image, flip_phrases, swap_left_right


def flip_some(
    texts: Sequence[str],
    regions: Sequence[Any] | None,
    images: Sequence[Any],
    generators: Sequence[np.random.Generator],
    probability: float,
    phrases: Sequence[Sequence[Mapping[str, Any]]] | None = None,
) -> tuple[list[str], list[Any] | None, list[Any], list[Any] | None]:
    """Flips some pictures with their boxes and phrases, and exchanges "left" and "right" in their texts."""
    flips = [rng.random() < probability for rng in generators]
    moved = None
    if phrases is not None:
        moved = [
            flip_phrases([text], each)[1] if flip else list(each)
            for text, each, flip in zip(texts, phrases, flips, strict=True)
        ]
    texts = [swap_left_right(text) if flip else text for text, flip in zip(texts, flips, strict=True)]
    images = [flip_image(image) if flip else image for image, flip in zip(images, flips, strict=True)]
    if regions is None:
        return texts, None, images, moved
    flipped = [replace(r, boxes=flip_boxes(r.boxes)) if flip else r for r, flip in zip(regions, flips, strict=True)]
    return texts, flipped, images, moved

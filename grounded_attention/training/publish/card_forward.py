# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The lines of a card's snippet that use the model: a forward call, and its outcome in words a reader understands."""

from typing import Any


def forward_lines(example: str, caption: str, phrase: str) -> str:
    """The lines that use the model.

    Args:
        example (`str`): of the task, see `Task.example`.
        caption (`str`): of the snippet.
        phrase (`str`): words of the caption.
    """
    return example.format(word=phrase.split()[-1], other=phrase)


def seen_lines(pixels: bool, feature_size: int, source: Any) -> str:
    """The lines that make the stand-ins of an image's regions.

    Args:
        pixels (`bool`): whether the model reads pixels.
        feature_size (`int`): D.
        source (`Any`): what computed the features of training, see `feature_source`; None where it is not known.
    """
    boxes = "boxes = [[0, 0, 320, 480], [320, 120, 640, 480]]  # x1 y1 x2 y2 in pixels, of a detector"
    if pixels:
        lines = ['image = Image.new("RGB", (640, 480))  # yours', boxes]
        return "\n".join([*lines, 'seen = {"images": image, "region_boxes": boxes, "image_sizes": (640, 480)}'])
    named = f"those of {source['name']}, on which it was trained" if source else "those that it was trained on"
    features = f"features = np.random.rand(2, {feature_size})  # of your boxes: {named}"
    return "\n".join(
        [boxes, features, 'seen = {"region_features": features, "region_boxes": boxes, "image_sizes": (640, 480)}']
    )

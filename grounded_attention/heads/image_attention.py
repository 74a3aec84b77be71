# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The attention of a model in one captioned image, and the attention of a phrase."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from grounded_attention.heads.example_attention import ExampleAttention, capture_examples
from grounded_attention.heads.examples import AuditExample
from grounded_attention.heads.observers import get_observer
from grounded_attention.processing.phrase import Phrase


def capture_image(pipe: Any, image: Image.Image, caption: str, image_id: str = "", **known: Any) -> ExampleAttention:
    """Captures the attention of every word in one image, in both directions."""
    # The caption as one phrase: every word is captured, so none has to be found.
    item = pipe.find_regions(image, caption, phrases=[caption], **known)
    labels = [label or "" for label in item.labels]
    names = sorted(set(labels))
    classes = np.array([names.index(label) for label in labels])
    record = SimpleNamespace(boxes=item.boxes, features=item.features, classes=classes)
    example = AuditExample(image_id, caption, ())
    observer = get_observer(pipe.model)
    return capture_examples(observer, pipe.processor, [example], {image_id: record}, lambda _: image, names)[0]


def phrase_attention(
    example: ExampleAttention, phrase: Phrase, layer: int, head: int | None = None
) -> np.ndarray | None:
    """The distribution of a phrase's attention over the regions: the mean of its words, each with the sum 1."""
    words = [
        word
        for word, (start, end) in enumerate(example.words)
        if phrase.start <= start and end <= phrase.end and example.text(word)[0].isalnum()
    ]
    if not words:
        return None
    return np.mean([example.over_regions(word, layer, head)[0] for word in words], axis=0)

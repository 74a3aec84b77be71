# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows of VCR and their regions."""

import numpy as np

from grounded_attention.dataset_scripts.regions.table import Regions
from tests.helpers.tiny_vgp import FEATURE_SIZE

BOXES = [[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]]


def text(words, *tags):
    """Makes a text of words with tags (word, objects)."""
    spans = []
    for word, objects in tags:
        start = words.index(word)
        spans.append({"start": start, "end": start + len(word), "objects": objects})
    return {"text": words, "tags": spans}


def row(number=0, label=2, objects=("person", "diningtable")):
    choices = [text("d e"), text("f a", ("a", [1])), text("g"), text("h i j k")]
    names = {"example_id": f"val-{number}", "image_id": "1", "objects": list(objects), "boxes": BOXES}
    return {**names, "question": text("a b c", ("b", [0]), ("c", [1, 0])), "choices": choices, "label": label}


def regions(count=2):
    features = np.random.default_rng(0).random((count, FEATURE_SIZE)).astype(np.float16)
    boxes = np.array((BOXES * 2)[:count], dtype=np.float32)
    return {"1": Regions("1", 100, 100, boxes, features)}

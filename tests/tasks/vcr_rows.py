# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows of VCR and their regions."""

import numpy as np

from grounded_attention.dataset_scripts.regions.table import Regions
from tests.helpers.tiny_vgp import FEATURE_SIZE

BOXES = [[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]]


def named(sentence, text, word, *objects):
    start = text.index(word)
    return {"text": word, "start": start, "end": start + len(word), "sentence": sentence, "regions": [*objects]}


def row(number=0, label=2, objects=("person", "diningtable")):
    phrases = [named(0, "a b c", "b", 0), named(0, "a b c", "c", 1, 0), named(2, "f a", "a", 1)]
    texts = {"text": "a b c", "choices": ["d e", "f a", "g", "h i j k"], "phrases": phrases}
    names = {"example_id": f"val-{number}", "image_id": "1", "objects": list(objects), "boxes": BOXES}
    return {**names, **texts, "label": label}


def regions(count=2):
    features = np.random.default_rng(0).random((count, FEATURE_SIZE)).astype(np.float16)
    boxes = np.array((BOXES * 2)[:count], dtype=np.float32)
    return {"1": Regions("1", 100, 100, boxes, features)}

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A tiny grounding pipeline and its examples."""

import numpy as np
from transformers import pipeline

from tests.helpers.tiny_vgp import FEATURE_SIZE

CAPTION = "a b sits on c"
PHRASES = ["a b", "c"]
BOXES = [[0, 0, 40, 30], [20, 15, 80, 60], [40, 0, 80, 30], [5, 5, 9, 50]]


def load(folder, **options):
    return pipeline("visual-grounding", model=str(folder), device="cpu", **options)


def features(count=4, seed=1):
    return np.random.default_rng(seed).random((count, FEATURE_SIZE)).astype(np.float32)


def example(caption=CAPTION, phrases=PHRASES, count=4, seed=1, **changes):
    known = {"boxes": BOXES[:count], "features": features(count, seed), "image_size": (80, 60)}
    return {"caption": caption, "phrases": phrases, **known, **changes}

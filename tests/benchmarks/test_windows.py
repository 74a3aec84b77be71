# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The benchmark of windows: the picture holds the scene as it was, and crops are those of `look`."""

import random

import numpy as np
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from benchmarks import windows as benchmark
from grounded_attention.lens.answered import ManyLooks
from grounded_attention.lens.look import look


def test_crops_are_those_of_look():
    scene = Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8))
    pair = [each.from_pretrained(benchmark.MODEL) for each in (AutoModelForImageTextToText, AutoProcessor)]
    question = "What color is the ball?"
    looks = ManyLooks(*pair, batch_size=8)
    pictures = benchmark.pictures_of(looks, scene, question, 4.0, random.Random(3))
    asked = dict(zip(benchmark.WAYS, pictures, strict=True))
    large = asked["no second look"]
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(large), (60, 80, 3))[:, :, 0]
    assert (windows == np.asarray(scene)).all((2, 3, 4)).sum() == 1
    lens = look(*pair, large, question, heads=looks.chosen.heads, again=True, max_new_tokens=2)
    assert asked["1/3"] == [large, large.crop(lens.crop)]

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows with answers of several lengths, and a table of them that any process may write."""

import numpy as np
from PIL import Image

from grounded_attention.lens.answered import ManyLooks
from grounded_attention.lens.answers import GivenAnswer
from grounded_attention.lens.lens_table import look_table
from tests.helpers.tiny_vlm_models import make_pair

HEADS = [(1, 2), (0, 0)]
SIZES = [(56, 40), (40, 64), (90, 30), (56, 40), (24, 24)]
TEXTS = ["what is the small cat near two red balls ?", "what ?", "a dog and a ball ?", "what is this ?", "cat ?"]
ANSWERS = ["a small cat", "two red balls near a dog and a cat", "a dog", "the", "a small dog near the ball"]


def picture(size, seed):
    width, height = size
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


ROWS = [
    {"image": picture(size, number), "text": text, "id": f"k{number}"}
    for number, (size, text) in enumerate(zip(SIZES, TEXTS, strict=True))
]


def many_rows(count):
    """Rows and their answers; every seventh row has none."""
    rows = []
    answers = []
    for number in range(count):
        rows.append({**ROWS[number % 5], "id": f"k{number}"})
        answers.append(None if number % 7 == 6 else GivenAnswer(ANSWERS[number * 3 % 5]))
    return rows, answers


def write_table(path, count, **options):
    """Writes the table of so many rows with a tiny LLaVA."""
    looks = ManyLooks(*make_pair("llava"), options.pop("heads", HEADS), batch_size=2)
    return look_table(looks, *many_rows(count), path, part_size=2, **options)

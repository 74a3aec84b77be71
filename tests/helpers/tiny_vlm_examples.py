"""Texts with phrases and boxes, and pictures, for tiny vision-language models."""

import numpy as np
from PIL import Image

from grounded_attention.heads.examples import AuditExample
from grounded_attention.processing.phrase import Phrase

TEXTS = ("a dog runs after the small cat .", "two red balls near a small cat", "the cat and a dog")


def pictures(count):
    """Pictures of odd sizes, by image id."""
    generator = np.random.default_rng(7)
    sizes = [(53, 37), (31, 64), (40, 40), (62, 33)]
    made = {}
    for index in range(count):
        width, height = sizes[index % len(sizes)]
        made[f"image {index}"] = Image.fromarray(generator.integers(0, 255, (height, width, 3), dtype=np.uint8))
    return made


def examples(count):
    """One text for each picture, with two phrases; boxes are inside the part that a centre crop leaves."""
    generator = np.random.default_rng(11)
    made = []
    for index in range(count):
        text = TEXTS[index % len(TEXTS)]
        spans = [(0, text.index(" ", 2)), (text.rindex(" ", 0, len(text) - 2) + 1, len(text))]
        phrases = []
        for start, end in spans:
            corner = generator.uniform(0.2, 0.45, 2)
            size = generator.uniform(0.2, 0.35, 2)
            boxes = np.array([[*corner, *(corner + size)]], dtype=np.float32)
            phrases.append(Phrase("", start, end, boxes=boxes))
        made.append(AuditExample(f"image {index}", text, tuple(phrases)))
    return made


def make_rows():
    """Four rows with one, two, no and one phrases, and answers of unlike lengths."""
    words = [["small cat"], ["a dog", "red"], [], ["two"]]
    answers = ["a small cat .", "a dog runs after the red balls", "here", "two balls ."]
    rng = np.random.default_rng(0)
    return [
        {
            "image": Image.fromarray(rng.integers(0, 255, (40, 30 + 9 * i, 3), dtype=np.uint8)),
            "prompt": "what is this ?",
            "completion": answer,
            "phrases": [{"text": each, "boxes": [[0.1 * i, 0.1, 0.9, 0.8 - 0.1 * i]]} for each in phrases],
        }
        for i, (phrases, answer) in enumerate(zip(words, answers, strict=True))
    ]

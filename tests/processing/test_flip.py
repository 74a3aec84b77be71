# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import json
import random
import re

import numpy as np
import pytest
from PIL import Image

from grounded_attention.tasks.flipping import (
    flip_boxes,
    flip_image,
    flip_phrases,
    swap_left_right,
    swap_left_right_spans,
)

WORDS = (
    "left right Left RIGHT LEFT Right man leftover bright copyright's left-hand top the , é 日本 right's _left".split()
)


def random_text(source):
    return source.choice(["", " "]).join([" ".join(source.choices(WORDS, k=source.randint(0, 8))), "."])


@pytest.mark.parametrize(
    "text, expected",
    {
        "the man on the left": "the man on the right",
        "Left of the RIGHT-hand man's leftover": "Right of the LEFT-hand man's leftover",
        "bright copyright left_ lefts": "bright copyright left_ lefts",
        "lEFT": "right",
        "": "",
    }.items(),
)
def test_words_swap(text, expected):
    assert swap_left_right(text) == expected


def test_swapping_twice_gives_the_text_back_word_by_word():
    source = random.Random(0)
    other = {"left": "right", "right": "left", "Left": "Right", "Right": "Left", "LEFT": "RIGHT", "RIGHT": "LEFT"}
    for _ in range(300):
        text = random_text(source)
        swapped = swap_left_right(text)
        assert swap_left_right(swapped) == text
        parts = re.split(r"(\W+)", text)
        assert swapped == "".join(other.get(part, part) for part in parts)


def test_spans_of_whole_words_follow_them():
    source = random.Random(1)
    for _ in range(300):
        text = random_text(source)
        words = [match.span() for match in re.finditer(r"\w+", text)]
        spans = [*words, (0, 0), (0, len(text)), *((start, len(text)) for start, _ in words)]
        swapped, moved = swap_left_right_spans(text, spans)
        assert swap_left_right_spans(swapped, moved) == (text, spans)
        for before, after in zip(spans, moved, strict=True):
            assert swapped[slice(*after)] == swap_left_right(text[slice(*before)])


def test_spans_that_cut_a_word_stay_in_it_and_keep_a_character():
    for word in ("left", "right"):
        text = f"a {word} b"
        spans = [(start, end) for start in range(len(text)) for end in range(start, len(text) + 1)]
        swapped, moved = swap_left_right_spans(text, spans)
        for before, after in zip(spans, moved, strict=True):
            assert 0 <= after[0] <= after[1] <= len(swapped)
            assert (before[0] < before[1]) == (after[0] < after[1])


def test_boxes_are_those_of_the_mirrored_pixels():
    rng = np.random.default_rng(0)
    boxes = np.sort(rng.integers(0, 17, (20, 2, 2)), axis=1).reshape(20, 4)
    flipped = (flip_boxes(boxes / 16) * 16).astype(int)
    for (x1, y1, x2, y2), (a, b, c, d) in zip(boxes, flipped, strict=True):
        drawn = np.zeros((16, 16), np.uint8)
        drawn[y1:y2, x1:x2] = 255
        mirrored = np.zeros_like(drawn)
        mirrored[b:d, a:c] = 255
        assert np.array_equal(flip_image(Image.fromarray(drawn)), mirrored)
    normalised = (boxes / 16).astype(np.float32).reshape(4, 5, 4)
    assert flip_boxes(normalised).dtype == np.float32
    assert np.array_equal(flip_boxes(flip_boxes(normalised)), normalised)
    assert flip_boxes([]).size == 0
    with pytest.raises(ValueError, match=r"Boxes of shape \(3,\)"):
        flip_boxes([0, 0, 1])


def test_phrases_of_an_example_flip_together():
    texts = ["left man", "the man right"]
    phrases = json.loads("""[
        {"sentence": 0, "start": 0, "end": 8, "boxes": [[0.0, 0.25, 0.25, 0.5]], "entity_id": "7"},
        {"sentence": 1, "start": 4, "end": 13}]""")
    expected = json.loads("""[
        {"sentence": 0, "start": 0, "end": 9, "boxes": [[0.75, 0.25, 1.0, 0.5]], "entity_id": "7"},
        {"sentence": 1, "start": 4, "end": 12}]""")
    flipped_texts, flipped = flip_phrases(texts, phrases)
    assert flipped_texts == ["right man", "the man left"]
    assert flipped == expected
    assert flip_phrases(flipped_texts, flipped) == (texts, phrases)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The picture that a visitor downloads: what the page shows, as a PNG file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from grounded_attention.pages.attention_pictures import WordAttention, method_comparison_figure
from grounded_attention.processing.phrase import Phrase

from .loading import Capture, VisitorError
from .view import WORD, VisitorChoice, grounded_phrases, where

MOST_COLUMNS = 3


def write_figure(captures: Sequence[Capture], choice: VisitorChoice, path: Path) -> Path:
    """Draws the chosen word, or the first phrases, of every checkpoint."""
    if not captures:
        raise VisitorError("There is nothing to draw yet: choose a picture first.")
    shown = [_shown(capture, choice.within(capture)) for capture in captures]
    if not all(shown):
        raise VisitorError("The caption names nothing that can be seen, so there is no picture; choose “one word”.")
    first = captures[0]
    rows = {
        f"{number}. {capture.name}, {where(capture, choice.within(capture))}": [
            _regions(capture, *one) for one in words[:MOST_COLUMNS]
        ]
        for number, (capture, words) in enumerate(zip(captures, shown, strict=True), 1)
    }
    method_comparison_figure(first.example.image, first.example.caption, rows, path)
    return path


def _shown(capture: Capture, choice: VisitorChoice) -> list[tuple[Phrase, np.ndarray]]:
    if choice.show != WORD:
        return grounded_phrases(capture, choice)
    example = capture.example
    weights, _ = example.over_regions(choice.word, choice.layer, choice.one_head)
    return [(Phrase(example.text(choice.word), *example.words[choice.word]), weights)]


def _regions(capture: Capture, phrase: Phrase, weights: np.ndarray) -> WordAttention:
    boxes = np.clip(capture.example.boxes, 0, 1)
    return WordAttention(phrase.text, (phrase.start, phrase.end), boxes, weights, np.zeros(len(boxes), bool))

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The attention of the words of a few texts on the patches of their images, for the page to click through.

Shape letters: L layers, H heads, W words, C cells of the grid of an image.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from grounded_attention.heads.example_attention import ExampleAttention, find_words
from grounded_attention.heads.examples import AuditExample
from grounded_attention.heads.maps import TokenGrid
from grounded_attention.heads.prompts import Images, PromptSettings, find_picture, make_batch
from grounded_attention.heads.reading import read_phrases
from grounded_attention.processing.open_images import open_image
from grounded_attention.processing.patch_grounding import match_coverage
from grounded_attention.processing.phrase import Phrase
from grounded_attention.supervision.supervise import head_layers

# Cells along an edge: the page has all heads of all layers, so that finer grids make it slow.
CELLS = 16
COVERAGE = 0.5


def capture_patches(
    model: Any, processor: Any, examples: Sequence[AuditExample], images: Images, instruction: str | None = None
) -> list[ExampleAttention]:
    """Captures the attention of each word of some texts on the patches of their images, in every head."""
    settings, found, numbers = PromptSettings(instruction=instruction), [], head_layers(model)
    with read_phrases(model) as read:
        for example in examples:
            spans = find_words(example.caption)
            words = tuple(Phrase("", start, end, boxes=np.zeros((0, 4), dtype=np.float32)) for start, end in spans)
            batch = make_batch(processor, [replace(example, phrases=words)], images, settings)
            kept = [number for number, tokens in enumerate(batch["phrase_mask"][0]) if tokens.any()]
            candidates = batch["region_candidate_mask"][0]
            grid = TokenGrid.of_tokens(batch["region_boxes"][0], candidates, CELLS)
            layers = read(batch, settings.words)
            attention = torch.stack([layers[number][0].cpu() for number in numbers])[:, :, kept]
            cells = grid.maps(attention * candidates).flatten(3).clamp(max=1)
            boxes = grid.cell_boxes()
            found.append(
                ExampleAttention(
                    image=open_image(find_picture(images, example.image_id)),
                    caption=example.caption,
                    words=tuple(spans[number] for number in kept),
                    boxes=boxes,
                    attention=cells.numpy(),
                    layers=tuple(map(str, numbers)),
                    gold=_gold(example, [spans[number] for number in kept], boxes),
                    image_id=example.image_id,
                )
            )
    return found


def _gold(example: AuditExample, words: Sequence[tuple[int, int]], boxes: np.ndarray) -> np.ndarray:
    """(W, C) bool: the cells in a gold box of a phrase that contains the word."""
    gold = np.zeros((len(words), len(boxes)), dtype=bool)
    for phrase in example.phrases:
        cells = np.broadcast_to(boxes, (len(phrase.boxes), *boxes.shape))
        covered = match_coverage(phrase.boxes, cells, COVERAGE).any(0)
        for number, (start, end) in enumerate(words):
            if phrase.start <= start and end <= phrase.end:
                gold[number] |= covered
    return gold

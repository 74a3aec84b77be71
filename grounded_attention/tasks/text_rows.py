# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows of text without images after the image rows of a batch (the second data stream of the VL-BERT public code)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from grounded_attention.modeling.task_losses import UNLABELLED

TEXT_KEYS = {"input_ids", "attention_mask", "token_type_ids", "text_positions", "labels"}


def draw_texts(
    texts: Sequence[Mapping[str, Any]], count: int, generators: Sequence[np.random.Generator]
) -> tuple[list[str], list[np.random.Generator]]:
    """Draws `count` texts of a corpus with each generator."""
    drawn = [(texts[int(rng.integers(len(texts)))]["text"], rng) for rng in generators for _ in range(count)]
    return [text for text, _ in drawn], [rng for _, rng in drawn]


def stack_batches(images: Mapping[str, Tensor], texts: Mapping[str, Tensor], padding: int) -> dict[str, Tensor]:
    """Joins a batch of image rows and a batch of text rows.

    In text rows the entries for images (regions, pixels, their targets) are 0, False, or -100 for labels. The model
    treats such rows as text without an image.
    """
    counts = [len(batch["input_ids"]) for batch in (images, texts)]
    length = images["input_ids"].shape[1]
    width = max(length, texts["input_ids"].shape[1])
    stacked = {}
    for name, above in images.items():
        fill = UNLABELLED if name.endswith("labels") else -1 if name.endswith("_positions") else 0
        fill = padding if name == "input_ids" else fill
        if name in TEXT_KEYS:
            parts = [F.pad(part, (0, width - part.shape[1]), value=fill) for part in (above, texts[name])]
        else:
            if name == "phrase_mask":  # (B1, P, T1)
                above = F.pad(above, (0, width - above.shape[2]))
            elif name == "region_positions" and (above[above >= 0] >= length).all():  # behind the text, which is wider
                above = torch.where(above >= 0, above + (width - length), above)
            parts = [above, above.new_full((counts[1], *above.shape[1:]), fill)]
        stacked[name] = torch.cat(parts)
    return stacked | {"text_only": torch.arange(sum(counts)) >= counts[0]}

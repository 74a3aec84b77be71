# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows of text alone below the image rows of a batch (the second stream of VL-BERT's public code)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from grounded_attention.modeling.task_losses import UNLABELLED

TEXT_KEYS = {"input_ids", "attention_mask", "token_type_ids", "labels"}


def draw_texts(
    texts: Sequence[Mapping[str, Any]], count: int, generators: Sequence[np.random.Generator]
) -> tuple[list[str], list[np.random.Generator]]:
    """`count` texts of a corpus for each generator, and for each text the generator that drew it."""
    drawn = [(texts[int(rng.integers(len(texts)))]["text"], rng) for rng in generators for _ in range(count)]
    return [text for text, _ in drawn], [rng for _, rng in drawn]


def stack_batches(images: Mapping[str, Tensor], texts: Mapping[str, Tensor], padding: int) -> dict[str, Tensor]:
    """A batch of image rows with one of text rows below it, and `text_only` (B,) bool.

    What only image rows have (regions, pixels, their targets) is zero, False, or -100 for labels in the text rows,
    which the model takes for text without image.

    Args:
        images: every tensor (B1, ...); those named as in `texts` (B1, T1).
        texts: tensors (B2, T2).
        padding: the id of [PAD].
    """
    counts = [len(batch["input_ids"]) for batch in (images, texts)]
    width = max(batch["input_ids"].shape[1] for batch in (images, texts))
    stacked = {}
    for name, above in images.items():
        fill = padding if name == "input_ids" else UNLABELLED if name.endswith("labels") else 0
        if name in TEXT_KEYS:
            parts = [F.pad(part, (0, width - part.shape[1]), value=fill) for part in (above, texts[name])]
        else:
            parts = [above, above.new_full((counts[1], *above.shape[1:]), fill)]
        stacked[name] = torch.cat(parts)
    return stacked | {"text_only": torch.arange(sum(counts)) >= counts[0]}

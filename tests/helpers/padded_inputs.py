# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Random inputs of rows that differ in their words and regions."""

import torch


def lengths_mask(lengths, width):
    return (torch.arange(width) < torch.tensor(lengths)[:, None]).long()


def padded_inputs(words, regions, width, seed=1):
    """Inputs of rows with these numbers of words (of 40) and regions; features have `width` values."""
    generator = torch.Generator().manual_seed(seed)
    text_mask = lengths_mask(words, max(words))
    region_mask = lengths_mask(regions, max(regions))
    return {
        "input_ids": torch.randint(1, 40, text_mask.shape, generator=generator),
        "attention_mask": text_mask,
        "region_features": torch.randn(*region_mask.shape, width, generator=generator),
        "region_boxes": torch.rand(*region_mask.shape, 2, 2, generator=generator).sort(dim=2).values.flatten(2),
        "region_attention_mask": region_mask,
    }


def of_shapes(changes):
    """Ones for the shapes among the values, as whole numbers; other values stay."""
    return {name: torch.ones(value).long() if isinstance(value, tuple) else value for name, value in changes.items()}

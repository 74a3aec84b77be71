# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tokens and regions that phrases align, and the rows and columns that a method supervises."""

import pytest
import torch

from grounded_attention.supervision import align, grounding_targets


def test_padded_tokens_and_regions_are_never_aligned():
    batch = {
        "phrase_mask": torch.ones(2, 1, 3),
        "phrase_regions": torch.ones(2, 1, 2),
        "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
        "region_attention_mask": torch.tensor([[1, 0], [1, 1]]),
    }
    first = [[True, False]] * 3
    second = [[True, True], [False, False], [False, False]]
    assert align(batch).tolist() == [first, second]


@pytest.mark.parametrize(
    "direction, rows, columns, gold",
    [
        ("text_to_region", [1, 3, 4, -1], [0, 1, 2], [[0, 2], [1, 2], [2, 2]]),
        ("region_to_text", [2, -1], [0, 1, 2, 3, 4], [[0, 1], [0, 3], [0, 4]]),
    ],
)
def test_rows_are_the_aligned_tokens_or_regions_in_order(direction, rows, columns, gold):
    batch = {"phrase_mask": torch.tensor([[[0, 1, 0, 1, 1]]]), "phrase_regions": torch.tensor([[[0, 0, 1]]])}
    found = grounding_targets(align(batch), batch, direction)
    assert found.rows.tolist() == [rows]
    assert found.columns.tolist() == [columns]
    assert found.gold[0].nonzero().tolist() == gold

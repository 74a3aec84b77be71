# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How often a map becomes the right box: objects of known size, planted in maps with noise of known weight."""

import numpy as np
import pytest
import torch

from grounded_attention.heads.maps import BOX_RULE, BOX_RULES, TokenGrid, attended_cells
from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou

CELLS = 24
TRIALS = 20
SIZES = (2, 4, 6, 8, 12)
BACKGROUNDS = (0.0, 0.3, 0.7)


def planted(generator, size, background):
    """A map with one object, and the box of the object."""
    height, width = np.maximum(1, np.round(size * generator.uniform(0.7, 1.4, 2))).astype(int)
    top = generator.integers(0, CELLS - height + 1)
    left = generator.integers(0, CELLS - width + 1)
    noise = generator.gamma(1.0, size=(CELLS, CELLS))
    inside = generator.gamma(2.0, size=(height, width))
    cells = noise / noise.sum() * background
    cells[top : top + height, left : left + width] += inside / inside.sum() * (1 - background)
    box = np.array([left, top, left + width, top + height]) / CELLS
    return torch.tensor(cells).float(), box


def square_grid(side):
    cells = torch.arange(side * side)
    return TokenGrid(cells, cells, torch.ones(side * side), side, side, (0.0, 0.0, 1.0, 1.0))


def accuracy(rule, size, background):
    generator = np.random.default_rng(size)
    grid = square_grid(CELLS)
    right = 0
    for _ in range(TRIALS):
        attention, box = planted(generator, size, background)
        found = grid.box(*attended_cells(attention, [rule]))
        right += box_iou([found], [box])[0, 0] >= IOU_THRESHOLD
    return right / TRIALS


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize("size", SIZES)
def test_the_default_finds_objects_of_every_size(size, background):
    assert accuracy(BOX_RULE, size, background) >= (0.85 if size > 2 else 0.75)


def test_the_cut_at_the_mean_loses_small_objects():
    """Why it is not the default."""
    assert accuracy("mean", 4, 0.0) <= 0.1
    assert accuracy("mean", 12, 0.0) >= 0.9


def test_boxes_end_inside_tokens():
    """Boxes of 8 x 8 tokens, whose attention is the part of a token that the object covers."""
    generator = np.random.default_rng(0)
    edges = np.arange(9) / 8
    grid = square_grid(8)
    right = dict.fromkeys(BOX_RULES, 0)
    for _ in range(100):
        size = generator.uniform(0.1, 0.3, (2, 1))
        start = generator.uniform(0, 1 - size)
        end = start + size
        across, down = np.clip(edges[1:], start, end) - np.clip(edges[:-1], start, end)
        cells = torch.tensor(np.outer(down, across)).float()
        for rule in BOX_RULES:
            box, _ = grid.attended(cells, rule)
            right[rule] += box_iou([box], [np.ravel([start, end])])[0, 0] >= IOU_THRESHOLD
    assert right["max-0.6"] >= 90
    assert right["max-0.6"] >= 2 * right[BOX_RULE]


@pytest.mark.parametrize("rule", BOX_RULES)
def test_the_part_in_the_box_is_that_of_the_attention(rule):
    cells = torch.zeros(8, 8)
    cells[2:4, 3:6] = 1.0
    cells[7, 0] = 0.5  # another place
    (x1, y1, x2, y2), share = square_grid(8).attended(cells, rule)
    assert x1 <= 4 / 8 <= x2
    assert y1 <= 3 / 8 <= y2
    width = min(x2, 6 / 8) - max(x1, 3 / 8)
    height = min(y2, 4 / 8) - max(y1, 2 / 8)
    assert share <= 64 * width * height / 6.5 + 1e-5


def test_a_rule_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="'mode' is unknown"):
        attended_cells(torch.ones(3, 3), ["mode"])

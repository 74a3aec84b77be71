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
    height, width = (max(1, round(size * generator.uniform(0.7, 1.4))) for _ in range(2))
    top = generator.integers(0, CELLS - height + 1)
    left = generator.integers(0, CELLS - width + 1)
    noise = generator.gamma(1.0, size=(CELLS, CELLS))
    inside = generator.gamma(2.0, size=(height, width))
    made = noise / noise.sum() * background
    made[top : top + height, left : left + width] += inside / inside.sum() * (1 - background)
    box = np.array([left, top, left + width, top + height]) / CELLS
    return torch.tensor(made, dtype=torch.float32), box


def accuracy(rule, size, background):
    generator = np.random.default_rng(size)
    right = 0
    edges = torch.arange(CELLS) / CELLS
    y, x = torch.meshgrid(edges, edges, indexing="ij")
    boxes = torch.stack([x, y, x + 1 / CELLS, y + 1 / CELLS], -1).view(-1, 4)
    grid = TokenGrid.of_tokens(boxes, torch.ones(len(boxes), dtype=torch.bool))
    for _ in range(TRIALS):
        attention, box = planted(generator, size, background)
        right += box_iou([grid.box(*attended_cells(attention, [rule]))], [box])[0, 0] >= IOU_THRESHOLD
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
    grid = TokenGrid(torch.arange(64), torch.arange(64), torch.ones(64), 8, 8, (0.0, 0.0, 1.0, 1.0))
    right = dict.fromkeys(BOX_RULES, 0)
    for _ in range(100):
        size = generator.uniform(0.1, 0.3, 2)
        start = generator.uniform(0, 1 - size)
        covered = [
            (np.minimum(edges[1:], start[axis] + size[axis]) - np.maximum(edges[:-1], start[axis])).clip(0)
            for axis in (0, 1)
        ]
        cells = torch.tensor(np.outer(covered[1], covered[0]), dtype=torch.float32)
        for rule in BOX_RULES:
            right[rule] += box_iou([grid.attended(cells, rule)[0]], [[*start, *(start + size)]])[0, 0] >= IOU_THRESHOLD
    assert right["max-0.6"] >= 90
    assert right["max-0.6"] >= 2 * right[BOX_RULE]


@pytest.mark.parametrize("rule", BOX_RULES)
def test_the_part_in_the_box_is_that_of_the_attention(rule):
    cells = torch.zeros(8, 8)
    cells[2:4, 3:6] = 1.0
    cells[7, 0] = 0.5  # another place
    grid = TokenGrid(torch.arange(64), torch.arange(64), torch.ones(64), 8, 8, (0.0, 0.0, 1.0, 1.0))
    (x1, y1, x2, y2), share = grid.attended(cells, rule)
    assert x1 <= 4 / 8 <= x2
    assert y1 <= 3 / 8 <= y2
    covered = (min(x2, 0.75) - max(x1, 0.375)) * (min(y2, 0.5) - max(y1, 0.25)) * 64
    assert share <= covered / 6.5 + 1e-5


def test_a_rule_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="'mode' is unknown"):
        attended_cells(torch.ones(3, 3), ["mode"])

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Maps of attention on image tokens: the grid, spatial entropy and the attended box, against loops by hand."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close

from grounded_attention.heads.boxes import ground_box
from grounded_attention.heads.maps import (
    TokenGrid,
    attended_cells,
    smooth,
    spatial_entropy,
)
from grounded_attention.utils.components import label_components


def flood_fill(cells):
    """Components of True cells, diagonal neighbours included, one cell at a time."""
    left = {tuple(place) for place in np.argwhere(cells).tolist()}
    found = []
    while left:
        waiting = [left.pop()]
        component = set()
        while waiting:
            y, x = waiting.pop()
            component.add((y, x))
            near = {place for place in left if max(abs(place[0] - y), abs(place[1] - x)) == 1}
            left -= near
            waiting += near
        found.append(component)
    return found


def entropy_by_hand(values):
    above = np.maximum(values - values.mean(), 0)
    total = above.sum()
    if total == 0:
        return math.log(values.size)
    entropy = 0.0
    for component in flood_fill(above > 0):
        share = sum(above[place] for place in component) / total
        entropy -= share * math.log(share)
    return entropy


def patches(columns, rows, frame=(0.0, 0.0, 1.0, 1.0)):
    """Boxes of a grid of patches, row by row."""
    across = torch.linspace(frame[0], frame[2], columns + 1)
    down = torch.linspace(frame[1], frame[3], rows + 1)
    left, top, right, bottom = across[:-1], down[:-1], across[1:], down[1:]
    top, left = torch.meshgrid(top, left, indexing="ij")
    bottom, right = torch.meshgrid(bottom, right, indexing="ij")
    return torch.stack([left, top, right, bottom], -1).flatten(0, 1)


def grid_of(boxes):
    return TokenGrid.of_tokens(boxes, torch.ones(len(boxes), dtype=torch.bool))


@pytest.mark.parametrize("frame", [(0.0, 0.0, 1.0, 1.0), (0.15, 0.0, 0.85, 1.0)])
@pytest.mark.parametrize("columns, rows", [(1, 1), (7, 3), (24, 24)])
def test_one_grid_of_patches_stays_as_it_is(columns, rows, frame):
    grid = grid_of(patches(columns, rows, frame))
    attention = torch.rand(2, columns * rows)
    assert (grid.columns, grid.rows) == (columns, rows)
    assert grid.frame == pytest.approx(frame)
    assert_close(grid.maps(attention).flatten(1), attention)


def test_attention_of_tiles_and_the_whole_image_is_added_where_they_show_it():
    """Tiles of 4 x 2 patches, then the whole image in 2 x 1: each large patch spreads over its four small ones."""
    boxes = torch.cat([patches(4, 2), torch.zeros(1, 4), patches(2, 1)])
    place = torch.ones(11, dtype=torch.bool)
    place[8] = False  # a newline
    attention = torch.rand(11)
    tiles = attention[:8].view(2, 4)
    whole = attention[9:].repeat_interleave(2) / 4
    found = TokenGrid.of_tokens(boxes, place).maps(attention)
    assert_close(found, tiles + whole, atol=1e-6, rtol=0)


def test_tokens_without_a_place_have_no_grid():
    with pytest.raises(ValueError, match="no image token shows"):
        TokenGrid.of_tokens(torch.zeros(3, 4), torch.zeros(3, dtype=torch.bool))


def test_components_are_those_of_a_flood_fill():
    cells = torch.rand(20, 6, 9, generator=torch.Generator().manual_seed(0)) < 0.45
    for one, labels in zip(cells.numpy(), label_components(cells).numpy(), strict=True):
        assert not labels[~one].any()
        components = flood_fill(one)
        for component in components:
            assert len({labels[place] for place in component}) == 1
        assert len(set(labels[one])) == len(components)
        assert labels[one].all()


def test_entropy_equals_a_loop_by_hand():
    maps = torch.rand(30, 5, 8, generator=torch.Generator().manual_seed(1)) ** 4
    maps[0] = 0.5  # nothing is above the mean
    maps[1:3] = 0.0
    maps[2, 3, 4] = 1.0  # one place
    found = spatial_entropy(maps)
    assert found[2] == 0
    expected = [entropy_by_hand(one) for one in maps.double().numpy()]
    assert found.tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("rows, columns, sigma", [(4, 6, 0.25), (12, 8, 0.5), (5, 24, 1.0), (5, 30, 1.0)])
def test_smoothing_equals_a_loop_by_hand(rows, columns, sigma):
    maps = np.random.default_rng(0).random((2, rows, columns))
    padded = np.pad(maps, ((0, 0), (3, 3), (3, 3)), mode="edge")
    expected = np.zeros_like(maps)
    total = 0.0
    for dy, dx in np.ndindex(7, 7):
        weight = math.exp(-((dy - 3) ** 2 + (dx - 3) ** 2) / sigma**2 / 2)
        expected += weight * padded[:, dy : dy + rows, dx : dx + columns]
        total += weight
    found = smooth(torch.tensor(maps))
    assert_allclose(found, expected / total, rtol=1e-6)


@pytest.mark.parametrize("side", [8, 12, 24])
def test_one_bright_cell_gives_a_box_of_few_cells_on_any_grid(side):
    attention = torch.zeros(1, side * side)
    attention[0, side * (side // 2) + side // 2] = 1.0
    boxes = patches(side, side)
    everywhere = torch.ones(len(boxes), dtype=torch.bool)
    x1, y1, x2, y2 = ground_box(attention, everywhere, grid_of(boxes)).box
    assert x1 == y1
    assert x2 == y2
    assert x1 * side <= side // 2
    assert x2 - x1 < 0.4


def test_the_box_is_around_the_brighter_of_two_places():
    attention = torch.zeros(2, 100)
    attention[0, [33, 34, 43, 44]] = 1.0  # rows 3 and 4, columns 3 and 4
    attention[1, 99] = 0.5
    everywhere = torch.ones(100, dtype=torch.bool)
    found = ground_box(attention, everywhere, grid_of(patches(10, 10)))
    assert found.box == pytest.approx((0.3, 0.3, 0.5, 0.5), abs=0.04)  # less than half a token
    assert found.token in (33, 34, 43, 44)
    assert found.share == pytest.approx(4 / 4.5, abs=0.05)
    assert found.map.sum() == pytest.approx(1.0)


def test_a_map_without_differences_gives_the_whole_image():
    assert attended_cells(torch.zeros(3, 4))[0].all()

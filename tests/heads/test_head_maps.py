# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Maps of attention on image tokens: the grid, spatial entropy and the attended box, against loops by hand."""

import math

import numpy as np
import pytest
import torch

from grounded_attention.heads.boxes import ground_box
from grounded_attention.heads.maps import (
    TokenGrid,
    attended_cells,
    smooth,
    spatial_entropy,
)
from grounded_attention.utils.masks import label_components


def flood_fill(cells):
    """Components of True cells, diagonal neighbours included, one cell at a time."""
    left = {tuple(place) for place in np.argwhere(cells)}
    found = []
    while left:
        waiting = [left.pop()]
        component = set()
        while waiting:
            y, x = waiting.pop()
            component.add((y, x))
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= near
            waiting += near
        found.append(component)
    return found


def entropy_by_hand(values):
    above = np.maximum(values - values.mean(), 0)
    if above.sum() == 0:
        return math.log(values.size)
    shares = [sum(above[place] for place in component) / above.sum() for component in flood_fill(above > 0)]
    return -sum(share * math.log(share) for share in shares if share > 0)


def patches(columns, rows, frame=(0.0, 0.0, 1.0, 1.0)):
    """Boxes of a grid of patches, row by row."""
    across = np.linspace(frame[0], frame[2], columns + 1)
    down = np.linspace(frame[1], frame[3], rows + 1)
    boxes = [[across[x], down[y], across[x + 1], down[y + 1]] for y in range(rows) for x in range(columns)]
    return torch.tensor(np.array(boxes, dtype=np.float32))


@pytest.mark.parametrize("frame", [(0.0, 0.0, 1.0, 1.0), (0.15, 0.0, 0.85, 1.0)])
@pytest.mark.parametrize(("columns", "rows"), [(1, 1), (7, 3), (24, 24)])
def test_one_grid_of_patches_stays_as_it_is(columns, rows, frame):
    grid = TokenGrid.of_tokens(patches(columns, rows, frame), torch.ones(columns * rows, dtype=torch.bool))
    attention = torch.rand(2, columns * rows)
    assert (grid.columns, grid.rows) == (columns, rows)
    assert grid.frame == pytest.approx(frame)
    torch.testing.assert_close(grid.maps(attention).flatten(1), attention)


def test_attention_of_tiles_and_the_whole_image_is_added_where_they_show_it():
    """Tiles of 4 x 2 patches, then the whole image in 2 x 1: each large patch spreads over its four small ones."""
    boxes = torch.cat([patches(4, 2), torch.zeros(1, 4), patches(2, 1)])
    place = torch.ones(11, dtype=torch.bool)
    place[8] = False  # a newline
    grid = TokenGrid.of_tokens(boxes, place)
    attention = torch.rand(11)
    found = grid.maps(attention)
    assert found.shape == (2, 4)
    for y in range(2):
        for x in range(4):
            expected = attention[4 * y + x] + attention[9 + x // 2] / 4
            assert float(found[y, x]) == pytest.approx(float(expected), abs=1e-6)
    assert float(found.sum()) == pytest.approx(float(attention[place].sum()), abs=1e-5)


def test_tokens_without_a_place_have_no_grid():
    with pytest.raises(ValueError, match="no image token shows"):
        TokenGrid.of_tokens(torch.zeros(3, 4), torch.zeros(3, dtype=torch.bool))


def test_components_are_those_of_a_flood_fill():
    cells = torch.rand(20, 6, 9, generator=torch.Generator().manual_seed(0)) < 0.45
    for one, labels in zip(cells, label_components(cells), strict=True):
        found = {}
        for place in zip(*np.nonzero(one.numpy()), strict=True):
            found.setdefault(int(labels[place]), set()).add(tuple(map(int, place)))
        assert 0 not in found
        assert not labels[~one].any()
        expected = flood_fill(one.numpy())
        assert sorted(map(sorted, found.values())) == sorted(sorted(map(int_pair, part)) for part in expected)


def int_pair(place):
    return int(place[0]), int(place[1])


def test_entropy_equals_a_loop_by_hand():
    maps = torch.rand(30, 5, 8, generator=torch.Generator().manual_seed(1)) ** 4
    maps[0], maps[1] = 0.5, 0.0  # nothing is above the mean
    maps[2] = 0.0
    maps[2, 3, 4] = 1.0  # one place
    found = spatial_entropy(maps)
    assert float(found[2]) == 0.0
    for value, one in zip(found, maps, strict=True):
        assert float(value) == pytest.approx(entropy_by_hand(one.double().numpy()), abs=1e-4)


@pytest.mark.parametrize("rows, columns, sigma", [(4, 6, 0.25), (12, 8, 0.5), (5, 24, 1.0), (5, 30, 1.0)])
def test_smoothing_equals_a_loop_by_hand(rows, columns, sigma):
    maps = torch.rand(2, rows, columns, dtype=torch.float64)
    weights = [math.exp(-((step / sigma) ** 2) / 2) for step in range(-3, 4)]
    total = sum(weights) ** 2
    found = smooth(maps)
    for n in range(2):
        for y in range(rows):
            for x in range(columns):
                expected = 0.0
                for dy in range(-3, 4):
                    for dx in range(-3, 4):
                        value = maps[n, min(max(y + dy, 0), rows - 1), min(max(x + dx, 0), columns - 1)]
                        expected += weights[dy + 3] * weights[dx + 3] * float(value)
                assert float(found[n, y, x]) == pytest.approx(expected / total)


@pytest.mark.parametrize("side", [8, 12, 24])
def test_one_bright_cell_gives_a_box_of_few_cells_on_any_grid(side):
    attention = torch.zeros(1, side * side)
    attention[0, side * (side // 2) + side // 2] = 1.0
    x1, y1, x2, y2 = ground_box(
        attention,
        torch.ones(side * side, dtype=torch.bool),
        TokenGrid.of_tokens(patches(side, side), torch.ones(side * side, dtype=torch.bool)),
    ).box
    assert x1 == y1
    assert x2 == y2
    assert x1 * side <= side // 2
    assert x2 - x1 < 0.4


def test_the_box_is_around_the_brighter_of_two_places():
    attention = torch.zeros(2, 100)
    attention[0, [33, 34, 43, 44]] = 1.0  # rows 3 and 4, columns 3 and 4
    attention[1, 99] = 0.5
    grid = TokenGrid.of_tokens(patches(10, 10), torch.ones(100, dtype=torch.bool))
    found = ground_box(attention, torch.ones(100, dtype=torch.bool), grid)
    assert found.box == pytest.approx((0.3, 0.3, 0.5, 0.5), abs=0.04)  # less than half a token
    assert found.token in (33, 34, 43, 44)
    assert found.share == pytest.approx(4 / 4.5, abs=0.05)
    assert found.map.sum() == pytest.approx(1.0)


def test_a_map_without_differences_gives_the_whole_image():
    assert attended_cells(torch.zeros(3, 4))[0].all()

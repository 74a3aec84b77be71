# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Token activation maps, against what the authors' code gave, and by loops where that code is at fault.

The authors search their scale, in float32, and here it is computed (Q7): scales differ by 1e-7, and maps by a few
times that, so they are compared up to 3e-6.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from grounded_attention.heads.maps import TokenGrid
from grounded_attention.lens.tam import (
    filter_ranks,
    filter_tokens,
    find_interference,
    normalise,
    remove_interference,
    token_maps,
)

PARITY = Path(__file__).parents[3] / "shared/parity/explanations.pt"
CASES = ("tam_square", "tam_wide", "tam_tall", "tam_two_images", "tam_frames")
recorded = pytest.mark.skipif(not PARITY.exists(), reason="no reference tensors here")
SEARCHED = {"atol": 3e-6, "rtol": 1e-5}


@pytest.fixture(scope="module")
def reference():
    return torch.load(PARITY, weights_only=True)


def token_grid(rows, columns, first, count):
    """The grid of one image of `count` tokens in all, row by row."""
    boxes = torch.zeros(count, 4)
    for place in range(rows * columns):
        y, x = divmod(place, columns)
        boxes[first + place] = torch.tensor([x / columns, y / rows, (x + 1) / columns, (y + 1) / rows])
    shown = (torch.arange(count) >= first) & (torch.arange(count) < first + rows * columns)
    return TokenGrid.of_tokens(boxes, shown)


def grids_of(case):
    listed = case["grids"].tolist()
    if len(listed[0]) == 3:
        [[frames, rows, columns]] = listed
        listed = [[rows, columns]] * frames
    count = len(case["image_positions"])
    grids = []
    first = 0
    for rows, columns in listed:
        grids.append(token_grid(rows, columns, first, count))
        first += rows * columns
    return grids


def own_numbers(case):
    """Activation, scores (T, T) and ids of a case, from its logits and its texts."""
    start, end = case["prompt_words_span"].tolist()
    prompt = len(case["prompt_ids"])
    answer = len(case["generated_ids"])
    read = [*range(start, end), *range(prompt - 1, prompt - 1 + answer)]
    classes = [*case["prompt_ids"][start:end].tolist(), *case["generated_ids"].tolist()]
    classes[0] = int(case["logits"][start].argmax())
    ids = torch.tensor([*case["prompt_ids"][start:end].tolist(), *case["generated_ids"].tolist()])
    activation = case["logits"][case["image_positions"]][:, classes].T.clamp(min=0)
    scores = case["logits"][read][:, classes].T.clamp(min=0)
    return activation, scores, ids, end - start


@recorded
@pytest.mark.parametrize("name", CASES)
def test_maps_are_those_of_the_authors(reference, name):
    """All of an answer's tokens; those of the prompt up to the range, in which the authors have later words too."""
    case = reference[name]
    activation, scores, ids, words = own_numbers(case)
    assert_close(activation, case["activation"])
    interference = find_interference(activation, scores, ids)
    assert_close(interference, case["interference"])
    cleaned = remove_interference(activation, interference)
    assert_close(cleaned, case["cleaned"], **SEARCHED)

    maps = token_maps(activation, scores, ids, grids_of(case))
    assert_close(maps[words:], case["filtered"][words:], **SEARCHED)

    # The range of a word of the prompt as recorded: all words of the prompt.
    beside = torch.ones_like(scores, dtype=torch.bool).tril(-1)
    beside[:words, :words] = True
    normalised = normalise(cleaned, scores, beside)
    assert_close(normalised, case["normalised"], **SEARCHED)
    filtered = sum(filter_tokens(normalised, grid) for grid in grids_of(case))
    assert_close(filtered, case["filtered"], **SEARCHED)
    # Q6: the authors' maps are these, cut to 8 bits.
    assert (255 * filtered - case["map_uint8"]).abs().max() <= 1.0


@recorded
def test_parts_are_those_of_the_authors(reference):
    parts = reference["tam_parts"]
    for number in range(3):
        assert_close(filter_ranks(parts[f"filter_in_{number}"]), parts[f"filter_out_{number}"])
    assert_close(filter_ranks(parts["filter5_in"], 5), parts["filter5_out"])
    # Q4: a flat window is NaN there, and its median here.
    flat = filter_ranks(parts["filter_in_flat"])
    assert flat.isfinite().all()
    usual = parts["filter_out_flat"].isfinite()
    assert not usual.all()
    assert_close(flat[usual], parts["filter_out_flat"][usual])
    assert_close(flat[~usual], parts["filter_in_flat"][~usual])

    first, second = parts["ls_a"], parts["ls_b"]
    expected = (first - parts["ls_scale"][:, None] * second).clamp(min=0)
    assert_close(remove_interference(first, second), expected, atol=1e-6, rtol=1e-6)


def test_the_scale_is_least_squares():
    generator = torch.Generator().manual_seed(0)
    activation, interference = torch.rand(2, 6, 20, generator=generator, dtype=torch.float64)
    cleaned = remove_interference(activation, interference)
    for mine, first, second in zip(cleaned.numpy(), activation.numpy(), interference.numpy(), strict=True):
        scale = np.linalg.lstsq(second[:, None], first, rcond=None)[0]
        assert mine == pytest.approx(np.maximum(first - scale * second, 0), abs=1e-12)


def test_a_word_that_repeats_the_first_has_no_interference():
    """Q3: the authors' code raises."""
    activation = torch.rand(3, 5, generator=torch.Generator().manual_seed(1))
    scores = torch.rand(3, 3, generator=torch.Generator().manual_seed(2))
    interference = find_interference(activation, scores, torch.tensor([7, 7, 8]))
    assert not interference[:2].any()
    assert_close(remove_interference(activation, interference)[:2], activation[:2])
    assert interference[2].all()


def test_an_empty_range_gives_zeros():
    """Q5: the authors' code divides by 0."""
    scores = torch.full((1, 1), 0.5)
    same = torch.full((1, 6), 0.5)
    assert not normalise(same, scores, torch.tensor([[True]])).any()
    assert not normalise(same, scores, torch.tensor([[False]])).any()


@pytest.mark.parametrize("rows, columns", [(1, 1), (1, 5), (2, 2), (4, 3)])
def test_the_filter_by_loops(rows, columns):
    generator = np.random.default_rng(3)
    maps = generator.random((2, rows, columns)).astype(np.float32)
    maps[1, :, 0] = 0
    found = filter_ranks(torch.from_numpy(maps)).numpy()
    for number, values in enumerate(maps):
        padded = np.pad(values, 1, mode="reflect")
        for y in range(rows):
            for x in range(columns):
                window = np.sort(padded[y : y + 3, x : x + 3].ravel()).astype(np.float64)
                if window.mean() <= 0:
                    expected = 0.0
                elif window.std() < 1e-6:
                    expected = window[4]
                else:
                    spread = window.std() / window.mean()
                    weights = [np.exp(-((rank - 4) ** 2) / (2 * spread**2)) for rank in range(9)]
                    expected = np.average(window, weights=weights)
                assert found[number, y, x] == pytest.approx(expected, abs=1e-6)


def test_tiles_and_the_whole_image_are_filtered_on_one_grid():
    """Of a token that shows four cells the mean of them; tokens without a place have nothing."""
    boxes = torch.zeros(18, 4)
    for place in range(16):
        y, x = divmod(place, 4)
        boxes[place] = torch.tensor([x / 4, y / 4, (x + 1) / 4, (y + 1) / 4])
    boxes[16] = torch.tensor([0.0, 0.0, 0.5, 0.5])
    grid = TokenGrid.of_tokens(boxes, torch.arange(18) < 17)
    values = torch.rand(1, 18, generator=torch.Generator().manual_seed(4))
    cells = values[0, :16].view(4, 4).clone()
    cells[:2, :2] = (cells[:2, :2] + values[0, 16] / 4) / (1 + 1 / 4)
    expected = filter_ranks(cells)
    found = filter_tokens(values, grid)[0]
    assert_close(found[:16].view(4, 4), expected)
    assert_close(found[16], expected[:2, :2].mean())
    assert found[17] == 0

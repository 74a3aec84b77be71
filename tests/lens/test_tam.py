# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Token activation maps, against what the authors' code gave, and by loops where that code is at fault.

The authors search their scale, in float32, and here it is computed (Q7): scales differ by 1e-7, and maps by a few
times that, so they are compared up to 3e-6.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from grounded_attention.heads.maps import TokenGrid
from grounded_attention.lens.look import look
from grounded_attention.lens.sequences import add_answer, generate, read_prompt
from grounded_attention.lens.tam import (
    filter_ranks,
    filter_tokens,
    find_interference,
    normalise,
    remove_interference,
    token_maps,
)
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from tests.helpers.tiny_vlm_models import make_pair
from tests.helpers.tiny_vlm_processors import type_of

TEXT = "what is the small cat ?"
PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 56, 3), dtype=np.uint8))
PARITY = Path(__file__).parents[3] / "shared/parity/explanations.pt"
CASES = ("tam_square", "tam_wide", "tam_tall", "tam_two_images", "tam_frames")
recorded = pytest.mark.skipif(not PARITY.exists(), reason="no reference tensors here")
SEARCHED = {"atol": 3e-6, "rtol": 1e-5}


@pytest.fixture(scope="module")
def reference():
    return torch.load(PARITY, weights_only=True)


def grid_boxes(rows, columns):
    boxes = []
    for place in range(rows * columns):
        y, x = divmod(place, columns)
        boxes.append([x / columns, y / rows, (x + 1) / columns, (y + 1) / rows])
    return torch.tensor(boxes)


def grids_of(case):
    listed = case["grids"].tolist()
    if len(listed[0]) == 3:
        listed = [listed[0][1:]] * listed[0][0]
    boxes = [grid_boxes(*sides) for sides in listed]
    image = torch.cat([torch.full((len(each),), number) for number, each in enumerate(boxes)])
    return [TokenGrid.of_tokens(torch.cat(boxes), image == number) for number in range(len(boxes))]


def numbers_of(logits, columns, ids, spoken, end):
    """Activation, scores and tokens, from all logits: tokens of the prompt where they are, others one before."""
    said = [*range(end, len(ids))]
    tokens = ids[[*spoken, *said]]
    classes = torch.cat([logits[spoken[0]].argmax()[None], tokens[1:]])
    read = logits[:, classes].T.clamp(min=0)
    return read[:, columns], read[:, [*spoken, *(place - 1 for place in said)]], tokens


def own_numbers(case):
    ids = torch.cat([case["prompt_ids"], case["generated_ids"]])
    spoken = range(*case["prompt_words_span"].tolist())
    found = numbers_of(case["logits"], case["image_positions"], ids, spoken, len(case["prompt_ids"]))
    return *found, len(spoken)


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
        assert_close(filter_ranks(parts[f"filter_in_{number}"][None])[0], parts[f"filter_out_{number}"])
    # Q4: a flat window is NaN there, and its median here.
    flat = filter_ranks(parts["filter_in_flat"][None])[0]
    assert flat.isfinite().all()
    usual = parts["filter_out_flat"].isfinite()
    assert not usual.all()
    assert_close(flat[usual], parts["filter_out_flat"][usual])
    assert_close(flat[~usual], parts["filter_in_flat"][~usual])

    first, second = parts["ls_a"], parts["ls_b"]
    expected = (first - parts["ls_scale"][:, None] * second).clamp(min=0)
    assert_close(remove_interference(first, second), expected, atol=1e-6, rtol=1e-6)


def test_a_word_that_repeats_the_first_has_no_interference():
    """Q3: the authors' code raises."""
    activation = torch.tensor([[0.5, 0.1], [0.2, 0.3], [0.4, 0.4]])
    interference = find_interference(activation, torch.ones(3, 3), torch.tensor([7, 7, 8]))
    assert_close(interference, torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.35, 0.2]]))
    assert_close(remove_interference(activation, interference)[:2], activation[:2])


def test_an_empty_range_gives_zeros():
    """Q5: the authors' code divides by 0."""
    assert not normalise(torch.full((1, 6), 0.5), torch.full((1, 1), 0.5), torch.ones(1, 1) > 0).any()


@pytest.mark.parametrize("rows, columns", [(1, 1), (1, 5), (2, 2), (4, 3)])
def test_the_filter_by_loops(rows, columns):
    maps = np.random.default_rng(3).random((2, rows, columns))
    found = filter_ranks(torch.from_numpy(maps)).numpy()
    for number, values in enumerate(maps):
        padded = np.pad(values, 1, mode="reflect")
        for y in range(rows):
            for x in range(columns):
                window = np.sort(padded[y : y + 3, x : x + 3].ravel())
                spread = max(window.std() / window.mean(), 1e-6)
                weights = [np.exp(-((rank - 4) ** 2) / (2 * spread**2)) for rank in range(9)]
                assert found[number, y, x] == pytest.approx(np.average(window, weights=weights), abs=1e-6)
    assert not filter_ranks(torch.zeros(1, rows, columns)).any()


def test_tiles_and_the_whole_image_are_filtered_on_one_grid():
    """Of a token that shows four cells the mean of them; tokens without a place have nothing."""
    boxes = torch.cat([grid_boxes(4, 4), torch.tensor([[0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.0, 0.0]])])
    grid = TokenGrid.of_tokens(boxes, torch.arange(18) < 17)
    values = torch.rand(1, 18, generator=torch.Generator().manual_seed(4))
    cells = values[:, :16].view(1, 4, 4).clone()
    cells[:, :2, :2] = (cells[:, :2, :2] + values[0, 16] / 4) / (1 + 1 / 4)
    expected = filter_ranks(cells)
    found = filter_tokens(values, grid)
    assert_close(found[:, :16].view(1, 4, 4), expected)
    assert_close(found[0, 16:], torch.tensor([expected[0, :2, :2].mean(), 0.0]))


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "gemma3", "llava_next"])
@pytest.mark.parametrize("answer", ["the red cat", None])
def test_look_reads_the_logits_of_all_positions(family, answer):
    """From the logits of a plain pass; a word is the mean of its tokens, whatever it is read for."""
    model, processor = make_pair(family)
    lens = look(model, processor, PICTURE, TEXT, answer=answer, form="tam", max_new_tokens=4)
    patches = PatchGroundingProcessor(processor, type_of(family))
    prompt = read_prompt(patches, TEXT, [TEXT], [PICTURE])
    if answer is None:
        ids = generate(model, patches, prompt, max_new_tokens=4)
    else:
        ids = processor.tokenizer(answer, add_special_tokens=False)["input_ids"]
    whole = add_answer(model, processor.tokenizer, prompt, ids)
    with torch.no_grad():
        logits = model(**whole.inputs).logits[0]
    spoken = [row for word in prompt.words for row in word.rows]
    tokens = whole.inputs["input_ids"][0]
    placed = whole.token_images == 0
    columns = whole.batch["region_positions"][0, placed]
    numbers = numbers_of(logits, columns, tokens, spoken, prompt.prompt_length)
    boxes = whole.batch["region_boxes"][0, placed]
    maps = token_maps(*numbers, [TokenGrid.of_tokens(boxes, placed[placed])])
    assert lens.words == whole.words
    assert maps.any()
    places = [*spoken, *range(prompt.prompt_length, len(tokens))]
    for number, word in enumerate(whole.words):
        expected = torch.stack([maps[places.index(row)] for row in word.rows]).mean(0)
        assert_close(torch.from_numpy(lens.attention[0, number])[placed], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("options", [{"form": "tam, sinks"}, {"form": "tam", "rows": "before"}])
def test_what_tam_cannot_be_combined_with_is_refused(options):
    with pytest.raises(ValueError, match="tam"):
        look(*make_pair("llava"), PICTURE, TEXT, answer="a cat", **options)

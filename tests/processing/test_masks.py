# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Masks: read in each form, and as shares of image tokens and regions that equal a count of pixels."""

import io
import json

import numpy as np
import pytest
from datasets import Dataset, Features, Image
from PIL import Image as Pictures

from grounded_attention import GroundingCollator, PatchGroundingProcessor, get_method, grounded_rows
from grounded_attention.dataset_scripts.builders.row_forms import own_features, own_row
from grounded_attention.processing import VisualBERTProcessor
from grounded_attention.tasks.flipping import flip_boxes, flip_phrases
from grounded_attention.utils.masks import mask_shares, read_mask, run_lengths
from tests.helpers.processing_helpers import FEATURE_SIZE, make_tokenizer
from tests.helpers.tiny_vlm_processors import make_processor

WIDTH = 56
HEIGHT = 40
# An L: its box has an empty quarter.
RING = json.loads("[[8, 4], [24, 4], [24, 18], [48, 18], [48, 36], [8, 36]]")
MASK = np.zeros((HEIGHT, WIDTH), dtype=bool)
MASK[4:36, 8:24] = MASK[18:36, 24:48] = True
BOX = [8 / WIDTH, 4 / HEIGHT, 48 / WIDTH, 36 / HEIGHT]


def compressed(runs):
    """COCO's encoder (`rleToString`), written from its description: differences in groups of 5 bits."""
    text = ""
    for number, run in enumerate(runs):
        value = run - (runs[number - 2] if number > 2 else 0)
        more = True
        while more:
            bits = value & 0x1F
            value = value >> 5
            more = value != -1 if bits & 0x10 else value != 0
            text += chr((bits | 0x20 * more) + 48)
    return text


def png(values):
    file = io.BytesIO()
    Pictures.fromarray(values).save(file, "PNG")
    return file.getvalue()


RUNS = run_lengths(MASK)
FORMS = {
    "run lengths": RUNS,
    "compressed": {**RUNS, "counts": compressed(RUNS["counts"])},
    "compressed bytes": {**RUNS, "counts": compressed(RUNS["counts"]).encode()},
    "two parts": [run_lengths(MASK & (np.arange(WIDTH) < 24)), run_lengths(MASK & (np.arange(WIDTH) >= 24))],
    "polygon": [np.ravel(RING).tolist()],
    "corners": RING,
    "named corners": [{"x": x, "y": y} for x, y in RING],
    "pixels": MASK,
    "PNG": {"bytes": png(MASK.astype(np.uint8) * 255), "path": None},
    "PNG of 0 and 1": png(MASK.astype(np.uint8)),
}


def read_phrases(mask, boxes=None, **more):
    row = {"image": Pictures.new("RGB", (WIDTH, HEIGHT)), "text": "the boot", "mask": mask, **more}
    (read,) = grounded_rows([row], **({"boxes": boxes} if boxes else {}))
    return read["phrases"]


def test_run_lengths_there_and_back():
    rng = np.random.default_rng(0)
    for share in (0, 0.3, 1):
        mask = rng.random((9, 13)) < share
        runs = run_lengths(mask)
        assert sum(runs["counts"]) == mask.size
        assert sum(runs["counts"][1::2]) == mask.sum()
        assert (read_mask(runs, "") == mask).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("more", [{}, {"bbox": [8, 4, 48, 36]}], ids=["alone", "beside a box"])
def test_rows_with_a_mask_in_each_form(form, more):
    (phrase,) = read_phrases(FORMS[form], **more)
    assert np.allclose(phrase["boxes"], [BOX])
    assert phrase["mask"] == RUNS


def test_objects_of_one_name_are_one_mask_and_a_box_without_one_leaves_boxes():
    boxes = ([8, 4, 24, 36], [24, 18, 48, 36])
    objects = [
        {"bbox": box, "category": "boot", "segmentation": runs}
        for box, runs in zip(boxes, FORMS["two parts"], strict=True)
    ]
    (phrase,) = read_phrases(None, objects=objects)
    assert len(phrase["boxes"]) == 2
    assert phrase["mask"] == RUNS
    objects[1]["segmentation"] = None
    (phrase,) = read_phrases(None, objects=objects)
    assert len(phrase["boxes"]) == 2
    assert "mask" not in phrase


def test_a_picture_of_classes_is_no_mask_and_one_of_another_size_is_refused():
    classes = MASK.astype(np.uint8) + np.eye(HEIGHT, WIDTH, dtype=np.uint8)
    (phrase,) = read_phrases(classes, "xyxy pixels", bbox=[8, 4, 48, 36])
    assert "mask" not in phrase
    with pytest.raises(ValueError, match="40 x 56"):
        read_phrases(run_lengths(MASK.T), "xyxy pixels", bbox=[8, 4, 48, 36])


def test_a_mask_that_is_pushed_is_read_back():
    image = png(np.zeros((HEIGHT, WIDTH), np.uint8))
    (given,) = grounded_rows([{"image": {"bytes": image, "path": None}, "text": "the boot", "mask": MASK}])
    features = own_features([given])
    stored = Dataset.from_list([own_row({**given, "image": image}, features, "row")], Features(features))
    (back,) = grounded_rows(stored.cast_column("image", Image(decode=False)))
    assert back["phrases"] == given["phrases"]
    assert back["phrases"][0]["mask"] == RUNS


def count_share(values, box):
    """The mean of a map in a box whose edges are at thirds of pixels, on pixels of a third."""
    fine = np.kron(values, np.ones((3, 3)))
    edges = box * np.tile(fine.shape[::-1], 2)
    x1, y1, x2, y2 = np.rint(edges).astype(int)
    assert np.allclose(edges, [x1, y1, x2, y2], atol=1e-3)
    return fine[y1:y2, x1:x2].mean()


def test_shares_equal_a_count_on_finer_pixels():
    """Boxes that end at thirds of pixels, counted in a mask of three times the size."""
    rng = np.random.default_rng(1)
    mask = rng.random((11, 7)) < 0.5
    corners = np.sort(rng.integers(0, [21, 33], (200, 2, 2)), axis=1)
    corners[:, 1] += 1
    boxes = (corners / [21, 33]).reshape(-1, 4)
    counted = [count_share(mask, box) for box in boxes]
    assert np.allclose(mask_shares(mask, boxes), counted, atol=1e-6)
    assert mask_shares(mask, np.array([[0.2, 0.3, 0.2, 0.9], [0, 0, 0, 0]])).tolist() == [0, 0]


@pytest.mark.parametrize("given", [{"mask": MASK}, {"mask": RUNS, "boxes": [BOX]}], ids=["pixels", "runs and box"])
def test_image_tokens_have_the_share_that_is_covered(given):
    processor = PatchGroundingProcessor(make_processor("qwen2_5_vl", byte_pairs=True))
    batch = processor("the boot", images=Pictures.new("RGB", (WIDTH, HEIGHT)), phrases=[{"text": "boot", **given}])
    gold = batch["phrase_regions"][0, 0].numpy()
    shares = np.array([count_share(MASK, box) for box in batch["region_boxes"][0].numpy()])
    assert ((gold > 0) & (gold < 1)).any()
    assert ((shares > 0) & (gold == 0)).any()
    assert np.allclose(gold, np.where(shares >= processor.coverage_threshold, shares, 0), atol=1e-5)
    assert np.allclose(batch["phrase_boxes"][0, 0], [BOX])


def test_a_map_of_a_row_is_the_target_of_gaze():
    """Through the collator of any Trainer, against a loop over pixels."""
    gaze = np.random.default_rng(2).random((HEIGHT, WIDTH)) * (np.arange(WIDTH) < 30)
    processor = PatchGroundingProcessor(make_processor("qwen2_5_vl", byte_pairs=True))
    method = get_method("gaze")
    phrases = [{"text": "boot", "mask": gaze.tolist()}]
    row = {"image": Pictures.new("RGB", (WIDTH, HEIGHT)), "text": "the boot", "phrases": phrases}
    batch = GroundingCollator(processor, method)([row])
    expected = [count_share(gaze, box) for box in batch["region_boxes"][0].numpy()]
    gold = method.targets(batch)["text_to_region"].gold[0]
    assert len(gold) > 0
    assert min(expected) == 0
    assert np.allclose(gold, expected / np.sum(expected), atol=1e-5)


def process(boxes, phrases):
    processor = VisualBERTProcessor(make_tokenizer(), region_feature_size=FEATURE_SIZE)
    features = np.ones((len(boxes), FEATURE_SIZE), np.float32)
    return processor("a man", region_boxes=boxes, region_features=features, phrases=phrases)


def test_regions_that_match_have_the_share_that_is_covered():
    pixels = json.loads("[[8, 4, 48, 36], [8, 8, 44, 36], [24, 4, 48, 18], [0, 0, 4, 4]]")
    regions = pixels / np.tile([WIDTH, HEIGHT], 2)
    phrase = {"text": "man", "start": 2, "end": 5, "mask": RUNS}
    found = process(regions, [phrase, {"text": "man", "boxes": [BOX]}])["phrase_regions"][0]
    whole = MASK[4:36, 8:48].mean()
    part = MASK[8:36, 8:44].mean()
    shares = [whole, part, 0, 0]
    assert np.allclose(found, [shares, [1, 1, 0, 0]], atol=1e-5)
    _, mirrored = flip_phrases(["a man"], [phrase])
    assert np.allclose(process(flip_boxes(regions), mirrored)["phrase_regions"][0], [shares], atol=1e-5)


@pytest.mark.parametrize(
    "mask",
    [
        "[[[true, true], [true, true]], [[true, true], [true, true]], [[true, true], [true, true]]]",
        "[[1.5, 1.5, 1.5], [1.5, 1.5, 1.5]]",
        "[[NaN, NaN, NaN], [NaN, NaN, NaN]]",
        '{"size": [2, 2]}',
        '{"size": [2, 2], "counts": [3]}',
        '{"size": [40, 56], "counts": "a"}',
        '{"size": [1000000, 1000000], "counts": [1000000000000]}',  # a terabyte, in a line of text
        '{"size": [-2, -2], "counts": [4]}',
    ],
)
def test_what_is_no_mask_is_named(mask):
    with pytest.raises(ValueError, match=r"phrase 0, mask: .*expected the pixels"):
        process([BOX], [{"text": "man", "boxes": [BOX], "mask": json.loads(mask)}])

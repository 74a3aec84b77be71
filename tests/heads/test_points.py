# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Points of maps and crops against what the code of GUI-AIMA, GUI-Actor and V2P computed, and where ours is right."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image, ImageDraw
from safetensors import safe_open
from transformers import AutoTokenizer

from grounded_attention.heads.points import is_hit, map_points, point_scores, zoom_box
from grounded_attention.lens.pointing import point
from grounded_attention.lens.word_maps import WordMap
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision import get_method
from grounded_attention.supervision.soft_attention import tell_anchor
from tests.helpers.tiny_vlm_models import make_model, make_pair
from tests.helpers.tiny_vlm_processors import make_processor

FILE = Path(__file__).parents[1] / "fixtures" / "attention_grounding.safetensors"


@pytest.fixture(scope="module")
def parity():
    with safe_open(FILE, "np") as file:
        return {key: file.get_tensor(key) for key in file.keys()}


@pytest.mark.parametrize("share", [0.3, 0.5])
@pytest.mark.parametrize("source, score", [("aima", "max"), ("actor", "mean"), ("v2p", "max")])
def test_points_are_those_of_the_authors(parity, source, score, share):
    maps = [key for key in parity if key.startswith(f"decode.{source}.") and key.endswith(".map")]
    assert len(maps) == 8
    for key in maps:
        points, scores = zip(*map_points(parity[key], share=share, score=score), strict=True)
        theirs = key.replace("map", str(int(share * 10)))
        assert_allclose(points, parity[f"{theirs}.points"], atol=1e-6)
        assert_allclose(scores, parity[f"{theirs}.scores"], atol=1e-6)


def test_a_map_without_attention_has_no_point():
    assert map_points(np.zeros((3, 4))) == []  # theirs is an IndexError


def test_a_frame_moves_points():
    cells = np.array([[0.0, 0.0], [1.0, 0.0]])
    ((found, _),) = map_points(cells, (0.5, 0.0, 1.0, 0.5))
    assert found == pytest.approx((0.625, 0.375))


def test_crops_are_those_of_gui_aima_inside_the_image(parity):
    cases = [key.removesuffix(".crop") for key in parity if key.startswith("zoom.") and key.endswith(".crop")]
    assert len(cases) == 10
    differ = 0
    for case in cases:
        width, height = parity[f"{case}.size"].tolist()
        crop = zoom_box((width, height), tuple(parity[f"{case}.point"].tolist()))
        theirs = parity[f"{case}.crop"].tolist()
        assert 0 <= crop[0] < crop[2] <= width
        assert 0 <= crop[1] < crop[3] <= height
        if theirs[2] > theirs[0] and theirs[3] <= height:
            assert list(crop) == theirs
        else:  # an empty crop, and one beyond an image that is longer than 18 to 1
            differ += 1
    assert differ == 2


@pytest.mark.parametrize(
    "place, reach, hit",
    [
        ((0.2, 0.4), (0.0, 0.0), True),
        ((0.85, 0.85), (0.0, 0.0), True),
        ((0.41, 0.3), (0.0, 0.0), False),
        ((0.41, 0.3), (0.02, 0.0), True),
        ((0.41, 0.45), (0.02, 0.02), False),
    ],
)
def test_hits_count_borders_and_reach(place, reach, hit):
    boxes = np.array([[0.2, 0.2, 0.4, 0.4], [0.8, 0.8, 0.9, 0.9]])
    assert is_hit(place, boxes, reach) == hit


def test_scores_of_groups():
    scores = point_scores([{"hit": 1.0}, {"hit": 0.0}, {"hit": 0.0}], [["icon"], ["text"], ["text"]])
    expected = {"all": 1 / 3, "mean of groups": 0.5, "icon": 1.0, "text": 0.0}
    assert {group: scores[group]["hit"] for group in expected} == pytest.approx(expected)


def picture():
    image = Image.new("RGB", (240, 120), "white")
    ImageDraw.Draw(image).rectangle((150, 30, 190, 70), fill="red")
    return image


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_a_model_points_with_and_without_zoom(family):
    model, processor = make_pair(family)
    heads = [(1, 2), (0, 0)]
    found = point(model, processor, picture(), "the small cat", heads=heads)
    assert len(found.points) <= 3
    assert not found.crops
    assert list(found.scores) == sorted(found.scores, reverse=True)
    (place, _), *_ = map_points(found.cells, found.frame)
    assert found.point == pytest.approx(place)
    near = point(model, processor, picture(), "the small cat", heads=heads, zoom=2)
    first, (x1, y1, x2, y2) = near.crops
    assert first == zoom_box((240, 120), found.point)
    assert x1 / 240 <= near.point[0] <= x2 / 240
    assert y1 / 120 <= near.point[1] <= y2 / 120
    with pytest.raises(ValueError, match="text"):
        point(model, processor, picture(), " ")


@pytest.fixture
def anchored():
    """A model that was taught an anchor, its processor, and what its eager attention gives for a question."""
    processor = make_processor("llava")
    processor.tokenizer.add_tokens(["<point>"], special_tokens=True)
    model = make_model("llava", processor.tokenizer)
    model.resize_token_embeddings(len(processor.tokenizer), mean_resizing=False)
    patches = PatchGroundingProcessor(processor, "llava")
    phrases = [[{"text": "<point>", "boxes": [[0.0, 0.0, 1.0, 1.0]]}]]
    batch = patches(["the small cat"], ["<point>"], images=[picture()], phrases=phrases)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        outputs = model(**patches.model_inputs(batch), output_attentions=True, output_hidden_states=True)
    model.set_attn_implementation("sdpa")
    anchor = batch["text_positions"][0][batch["phrase_mask"][0, 0]].item()
    return model, processor, outputs, batch["region_positions"][0], anchor


def test_an_anchor_points_by_its_own_row(anchored):
    """Over all heads with the weights of the word of the question that is nearest to the image."""
    model, processor, outputs, images, anchor = anchored
    found = point(model, processor, picture(), "the small cat")
    assert "<point>" in found.source
    asked = torch.arange(int(images.max()) + 1, anchor)
    nearness = 0
    for states in outputs.hidden_states[1:]:
        unit = torch.nn.functional.normalize(states[0], dim=-1)
        nearness = nearness + (unit[asked] @ unit[images].T).sum(1)
    maps = torch.cat(outputs.attentions).flatten(0, 1)[..., images]  # (heads, rows, image tokens)
    weights = maps[:, asked[nearness.argmax()]].sum(1).softmax(0)
    expected = weights @ maps[:, anchor]
    assert_allclose(found.cells.flatten(), expected / expected.sum(), atol=1e-5)


def test_a_saved_tokenizer_says_how_its_anchor_was_taught(anchored, tmp_path):
    """Here by the mean of the heads of one layer."""
    model, processor, outputs, images, anchor = anchored
    tell_anchor(get_method("pointer", reduction="mean", layers=[1]), processor.tokenizer)
    processor.tokenizer.save_pretrained(tmp_path)
    processor.tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    found = point(model, processor, picture(), "the small cat")
    rows = outputs.attentions[1][0, :, anchor][:, images]
    expected = (rows / rows.sum(-1, keepdim=True)).mean(0)
    assert_allclose(found.cells.flatten(), expected, atol=1e-5)


def test_an_anchor_of_other_methods(anchored):
    model, processor, *_ = anchored
    before = point(model, processor, picture(), "the small cat")
    tell_anchor(get_method("direct"), processor.tokenizer)
    after = point(model, processor, picture(), "the small cat")
    assert_allclose(after.cells, before.cells, atol=1e-6)
    tell_anchor(get_method("actor"), processor.tokenizer)
    with pytest.raises(ValueError, match="actor"):
        point(model, processor, picture(), "the small cat")


def test_a_word_of_look_has_the_point_of_its_map():
    cells = np.zeros((4, 6), dtype=np.float32)
    cells[1, 2:4] = (3, 1)
    cells[3, 0] = 2  # another place
    word = WordMap("ball", 0, cells, (0.5, 0.0, 1.0, 1.0), (0, 0, 1, 1), 0.5, ((0, 0),), (60, 40))
    assert word.point == pytest.approx((0.5 + 0.5 * (3 * 2.5 + 1 * 3.5) / 4 / 6, 1.5 / 4))
    assert replace(word, cells=0 * cells).point == (0.75, 0.5)

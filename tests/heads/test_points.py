# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Points of maps and crops against what the code of GUI-AIMA, GUI-Actor and V2P computed, and where ours is right."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
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


@pytest.mark.parametrize(("source", "score"), [("aima", "max"), ("actor", "mean"), ("v2p", "max")])
def test_points_are_those_of_the_authors(parity, source, score):
    names = sorted({key.split(".")[2] for key in parity if key.startswith(f"decode.{source}.")})
    assert len(names) == 8
    for name in names:
        cells = parity[f"decode.{source}.{name}.map"]
        for share in (0.3, 0.5):
            found = map_points(cells, share=share, score=score)
            theirs = f"decode.{source}.{name}.{int(share * 10)}"
            assert np.allclose([point for point, _ in found], parity[f"{theirs}.points"], atol=1e-6)
            assert np.allclose([value for _, value in found], parity[f"{theirs}.scores"], atol=1e-6)


def test_a_map_without_attention_has_no_point():
    assert map_points(np.zeros((3, 4))) == []  # theirs is an IndexError


def test_a_frame_moves_points():
    cells = np.zeros((2, 2))
    cells[1, 0] = 1.0
    assert map_points(cells, (0.5, 0.0, 1.0, 0.5))[0][0] == pytest.approx((0.625, 0.375))


def test_crops_are_those_of_gui_aima_inside_the_image(parity):
    cases = sorted({key.split(".")[1] for key in parity if key.startswith("zoom.")}, key=int)
    assert len(cases) == 10
    differ = 0
    for case in cases:
        width, height = parity[f"zoom.{case}.size"].tolist()
        crop = zoom_box((width, height), tuple(parity[f"zoom.{case}.point"].tolist()))
        theirs = parity[f"zoom.{case}.crop"].tolist()
        assert 0 <= crop[0] < crop[2] <= width
        assert 0 <= crop[1] < crop[3] <= height
        if theirs[2] > theirs[0] and theirs[3] <= height:
            assert list(crop) == theirs
        else:  # an empty crop, and one beyond an image that is longer than 18 to 1
            differ += 1
    assert differ == 2


def test_hits_count_borders_and_reach():
    boxes = np.array([[0.2, 0.2, 0.4, 0.4], [0.8, 0.8, 0.9, 0.9]])
    assert is_hit((0.2, 0.4), boxes)
    assert is_hit((0.85, 0.85), boxes)
    assert not is_hit((0.41, 0.3), boxes)
    assert is_hit((0.41, 0.3), boxes, (0.02, 0.0))
    assert not is_hit((0.41, 0.45), boxes, (0.02, 0.02))
    scores = point_scores([{"hit": 1.0}, {"hit": 0.0}, {"hit": 0.0}], [["icon"], ["text"], ["text"]])
    assert scores["all"]["hit"] == pytest.approx(1 / 3)
    assert scores["mean of groups"]["hit"] == 0.5
    assert scores["icon"]["hit"] == 1.0
    assert scores["text"]["hit"] == 0.0


def picture():
    image = Image.new("RGB", (240, 120), "white")
    ImageDraw.Draw(image).rectangle((150, 30, 190, 70), fill="red")
    return image


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_a_model_points_with_and_without_zoom(family):
    model, processor = make_pair(family)
    found = point(model, processor, picture(), "the small cat", heads=[(1, 2), (0, 0)])
    assert len(found.points) <= 3
    assert not found.crops
    assert list(found.scores) == sorted(found.scores, reverse=True)
    expected = map_points(found.cells, found.frame)
    assert found.point == pytest.approx(expected[0][0])
    assert 0 <= found.point[0] <= 1
    near = point(model, processor, picture(), "the small cat", heads=[(1, 2), (0, 0)], zoom=2)
    assert len(near.crops) == 2
    assert near.crops[0] == zoom_box((240, 120), found.point)
    x1, y1, x2, y2 = near.crops[1]
    assert x1 / 240 <= near.point[0] <= x2 / 240
    assert y1 / 120 <= near.point[1] <= y2 / 120
    with pytest.raises(ValueError, match="text"):
        point(model, processor, picture(), " ")


def test_an_anchor_points_by_its_own_row(tmp_path):
    """The anchor's map is that of eager attention, over all heads with the weights of the question."""
    processor = make_processor("llava")
    processor.tokenizer.add_tokens(["<point>"], special_tokens=True)
    model = make_model("llava", processor.tokenizer)
    model.resize_token_embeddings(len(processor.tokenizer), mean_resizing=False)
    found = point(model, processor, picture(), "the small cat")
    assert "<point>" in found.source
    patches = PatchGroundingProcessor(processor, "llava")
    phrases = [[{"text": "<point>", "boxes": [[0.0, 0.0, 1.0, 1.0]]}]]
    batch = patches(["the small cat"], ["<point>"], images=[picture()], phrases=phrases)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        seen = model(**patches.model_inputs(batch), output_attentions=True, output_hidden_states=True)
    ids = batch["input_ids"][0]
    anchor = int((ids == processor.tokenizer.convert_tokens_to_ids("<point>")).nonzero()[0])
    images = batch["region_positions"][0]
    asked = torch.arange(int(images.max()) + 1, anchor)
    cosines = sum(
        torch.nn.functional.cosine_similarity(states[0, asked, None], states[0, None, images], dim=-1).sum(1)
        for states in seen.hidden_states[1:]
    )
    best = asked[cosines.argmax()]
    maps = torch.cat([layer[0] for layer in seen.attentions])
    weights = maps[:, best][:, images].sum(1).softmax(0)
    expected = (weights[:, None] * maps[:, anchor][:, images]).sum(0)
    assert np.allclose(found.cells.flatten(), (expected / expected.sum()).numpy(), atol=1e-5)
    # Taught in other words: the saved tokenizer says how, and the mean of the heads of one layer is read.
    tell_anchor(get_method("pointer", reduction="mean", layers=[1]), processor.tokenizer)
    processor.tokenizer.save_pretrained(tmp_path)
    processor.tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model.set_attn_implementation("sdpa")
    taught = point(model, processor, picture(), "the small cat")
    rows = seen.attentions[1][0, :, anchor][:, images]
    assert np.allclose(taught.cells.flatten(), (rows / rows.sum(-1, keepdim=True)).mean(0).numpy(), atol=1e-5)
    tell_anchor(get_method("direct"), processor.tokenizer)
    assert np.allclose(point(model, processor, picture(), "the small cat").cells, found.cells, atol=1e-6)
    tell_anchor(get_method("actor"), processor.tokenizer)
    with pytest.raises(ValueError, match="actor"):
        point(model, processor, picture(), "the small cat")


def test_a_word_of_look_has_the_point_of_its_map():
    cells = np.zeros((4, 6), dtype=np.float32)
    cells[1, 2], cells[1, 3], cells[3, 0] = 3, 1, 2  # two neighbours, and another place
    word = WordMap("ball", 0, cells, (0.5, 0.0, 1.0, 1.0), (0, 0, 1, 1), 0.5, ((0, 0),), (60, 40))
    assert np.allclose(word.point, (0.5 + 0.5 * (3 * 2.5 + 1 * 3.5) / 4 / 6, 1.5 / 4))
    assert replace(word, cells=0 * cells).point == (0.75, 0.5)

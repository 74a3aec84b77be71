# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The one picture of attention: what its colours and hatching mean, and that every place that shows it agrees."""

import base64
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from grounded_attention.heads.example_attention import ExampleAttention
from grounded_attention.pages.attention_pictures import PatchAttention, WordAttention, attention_figure, patch_figure
from grounded_attention.pages.explorer import explorer, explorer_body
from grounded_attention.pages.overlay import attention_overlay
from grounded_attention.processing.image_layouts import ImageFrame

pytestmark = pytest.mark.drawn_figures
GROUNDS = {"white": (255,) * 3, "black": (0,) * 3, "red": (200, 30, 30), "sky": (150, 200, 240)}
FRAME = (0.25, 0.0, 0.75, 1.0)  # a centre crop: the model sees nothing of both sides
WEIGHTS = np.array([0.4, 0.1, 0.3, 0.2])  # of the cells of 2 x 2, row by row


def grey(picture):
    return np.asarray(Image.fromarray(np.asarray(picture)).convert("L"), dtype=float)


def cells_and_side(picture):
    """The lightness at the middle of each cell of the frame, and the pixels of the left side, which is not seen."""
    light = grey(picture)
    height, width = light.shape
    rows = np.array([0.25, 0.25, 0.75, 0.75]) * height
    columns = np.array([0.375, 0.625, 0.375, 0.625]) * width
    return light[rows.astype(int), columns.astype(int)], light[3:-3, 3 : int(0.24 * width)]


def check(picture, ground):
    """More attention is lighter, also in grey; what is not seen has light and dark lines on the picture itself."""
    middles, side = cells_and_side(picture)
    assert np.argsort(middles).tolist() == np.argsort(WEIGHTS).tolist(), middles
    assert abs(np.median(side) - ground) < 12, "the picture between the lines"
    assert np.ptp(side) > 30, "lines all over it"
    assert np.ptp(side[:, :2]) > 40


@pytest.mark.parametrize("size", [(160, 90), (90, 160), (64, 64)])
@pytest.mark.parametrize("name", GROUNDS)
def test_lighter_is_more_on_any_ground_and_the_unseen_is_hatched(name, size):
    image = Image.new("RGB", (40, 30), GROUNDS[name])
    drawn = attention_overlay(image, ImageFrame(1, 1, FRAME).grid(2, 2), WEIGHTS, size, 0.4)
    assert drawn.size == size
    check(drawn, grey(image).mean())
    light = grey(drawn)
    edge = light[0, 0]
    inner = light[1, 1]
    assert inner - edge > 150, "an edge on pages of any colour"
    for line in (light[0], light[-1], light[:, 0], light[:, -1]):
        assert (line == edge).all()
    for line in (light[1], light[-2]):
        assert (line[1:-1] == inner).all()


def test_overlapping_boxes_show_the_largest_share_and_boxes_without_a_place_nothing():
    boxes = [[0, 0, 0.8, 1], [0.2, 0, 1, 1], [np.nan] * 4]
    image = Image.new("L", (9, 9))
    drawn = attention_overlay(image, boxes, [0.3, 0.6, 0.1], (90, 90))
    other_order = attention_overlay(image, boxes[::-1], [0.1, 0.6, 0.3], (90, 90))
    assert np.array_equal(drawn, other_order)
    light = grey(drawn)[45]
    assert light[9] < light[45] == light[80]


def test_the_figures_and_the_explorer_mean_the_same(tmp_path):
    image = Image.new("RGB", (200, 120), GROUNDS["sky"])
    ground = grey(Image.new("RGB", (1, 1), GROUNDS["sky"])).item()
    boxes = ImageFrame(1, 1, FRAME).grid(2, 2).astype(np.float32)
    example = ExampleAttention(image, "ball", ((0, 4),), boxes, WEIGHTS.reshape(1, 1, 1, 4), ("0",))
    patches = PatchAttention("ball", WEIGHTS.reshape(2, 2), FRAME, (0.25, 0, 0.5, 0.5), 0.4)
    words = WordAttention("ball", boxes, WEIGHTS, np.zeros(4, bool))
    of_patches = patch_figure(image, [patches], tmp_path / "patches.png")
    of_regions = attention_figure(image, "ball", [words], tmp_path / "regions.png")
    check(of_patches.axes[0].images[0].get_array(), ground)
    check(of_regions.axes[0].images[0].get_array(), ground)
    html = explorer_body([explorer({"a": [example]})])
    assert "hatched: no region or image token" in html
    assert "linear-gradient" in html
    data = json.loads(re.search(r'id="explorer-data">(.*?)</script>', html)[1])
    [picture] = data["explorers"][0]["examples"][0]["pictures"]
    source = base64.b64decode(picture["source"].split(",")[1])
    _, side = cells_and_side(Image.open(io.BytesIO(source)).convert("RGB"))
    assert np.ptp(side) > 60, "hatched in the page, which colours the regions itself"
    lightness = np.sum(data["colours"], 1)
    assert (np.diff(lightness) > 0).all()


@pytest.mark.parametrize("phrases", [1, 3])
def test_the_legend_of_image_tokens_is_within_the_picture(phrases):
    one = PatchAttention("ball", np.ones((2, 2)), (0.0, 0.0, 1.0, 1.0), (0.0, 0.0, 0.5, 0.5), 0.5)
    figure = patch_figure(Image.new("RGB", (80, 60)), [one] * phrases)
    figure.draw_without_rendering()
    label = figure.texts[-1].get_window_extent()
    assert figure.bbox.x0 <= label.x0
    assert label.x1 <= figure.bbox.x1

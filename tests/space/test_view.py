# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The picture of the page as HTML, its figure, the checkpoints behind it, and what a visitor may do wrong."""

import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from transformers import AutoModelForImageTextToText

from grounded_attention.heads.example_attention import ExampleAttention
from grounded_attention.space.figure import write_figure
from grounded_attention.space.loading import LONGEST_TEXT, Capture, Captures, VisitorError, open_picture
from grounded_attention.space.settings import SCENES, SMALL_VLM, SpaceSettings, read_scenes
from grounded_attention.space.small_checkpoints import write_small
from grounded_attention.space.view import PHRASES, VisitorChoice, grounded_phrases, view_html
from grounded_attention.utils import open_images
from grounded_attention.utils.whole_words import find_words
from tests.helpers.tiny_vlm_files import save_llava

CAPTION = 'a <b>red</b> ball & the "small" cube'
LAYERS, HEADS, REGIONS = 3, 4, 5
RED = 4  # index of this word


def capture(caption=CAPTION, name="<model>", seed=0, layers=LAYERS):
    rng, words = np.random.default_rng(seed), tuple(find_words(caption))
    left = np.arange(REGIONS) / REGIONS
    boxes = np.stack([left, 0.2 + 0 * left, left + 0.15, 0.8 + 0 * left], 1)
    there = rng.dirichlet(np.full(REGIONS + 1, 0.3), (layers, HEADS, len(words)))[..., :-1]
    image = Image.fromarray(rng.integers(0, 255, (60, 120, 3), dtype=np.uint8))
    names = tuple(str(layer) for layer in range(layers))
    return Capture(name, ExampleAttention(image, caption, words, boxes, there, names, labels=("<i>",) * REGIONS))


@pytest.fixture(scope="module")
def captures():
    return Captures(SpaceSettings())


@pytest.fixture(scope="module")
def scene():
    first = read_scenes()[3]
    return open_picture(first.path), first.caption


# The view


def test_it_shows_the_shares_of_the_chosen_head():
    one = capture()
    word = RED
    html = view_html([one], VisitorChoice(word, layer=1, head=2))
    shares = dict(re.findall(r'data-region="(\d+)" data-share="([\d.]+)"', html))
    expected = one.example.attention[1, 2, word] / one.example.attention[1, 2, word].sum()
    assert [float(shares[str(region)]) for region in range(REGIONS)] == pytest.approx(expected.tolist(), abs=1e-5)
    assert html.count('aria-pressed="true"') == 1 and f'data-word="{word}" aria-pressed="true"' in html
    assert html.count("ga-here") == 1 and 'ga-here" data-cell="1 2"' in html


def test_texts_of_data_stay_texts():
    html = view_html([capture()], VisitorChoice(0)) + view_html([capture()], replace(VisitorChoice(0), show=PHRASES))
    assert "<model>" not in html and "<i>" not in html and "&lt;model&gt;" in html
    assert html.count("<b>") == 0, "only the style of a number is bold"


def test_a_smaller_model_beside_a_larger_one_shows_its_last_layer():
    html = view_html([capture(), capture(name="small", seed=1, layers=2)], VisitorChoice(0, layer=2, head=3))
    assert re.findall(r'class="ga-where">([^<]+)<', html) == ["layer 2, head 3", "layer 1, head 3"]


def test_phrases_are_runs_of_content_words_and_point_to_the_mean_of_their_words():
    one = capture("the small red ball near a cube")
    (ball, ball_weights), (cube, _) = grounded_phrases(one, VisitorChoice(0, layer=1, head=1))
    assert (ball.text, cube.text) == ("small red ball", "cube")
    rows = one.example.attention[1, 1, 1:4]
    assert ball_weights == pytest.approx((rows / rows.sum(1, keepdims=True)).mean(0))


@pytest.mark.parametrize("show", ["one word", PHRASES])
def test_the_figure_is_a_picture_of_every_checkpoint(tmp_path, show):
    pair = [capture(), capture(name="other", seed=1)]
    paths = [write_figure(pair[:n], VisitorChoice(RED, 1, 2, show), tmp_path / f"{n}.png") for n in (1, 2)]
    with Image.open(paths[0]) as one, Image.open(paths[1]) as two:
        assert two.height > one.height
    with pytest.raises(VisitorError, match="choose a picture"):
        write_figure([], VisitorChoice(), tmp_path / "figure.png")


# Checkpoints


def test_the_small_checkpoints_read_the_scenes(captures, scene):
    image, caption = scene  # a red cross under a small pink hoop
    before, after = (captures.grounded(image, caption, name) for name in captures.settings.models)
    assert before.example.attention.shape == after.example.attention.shape
    assert not before.notes and not after.notes
    assert captures.grounded(image, caption, after.name) is after, "a second click computes nothing"


def test_supervised_attention_finds_what_the_phrases_name(captures, scene):
    """The hoop and the cross of this scene are the only small pink and the only cross-shaped objects."""
    image, caption = scene
    after = captures.grounded(image, caption, list(captures.settings.models)[1])
    found = []
    for layer in range(len(after.example.layers)):
        phrases = grounded_phrases(after, VisitorChoice(0, layer))
        found.append([after.example.labels[int(weights.argmax())] for _, weights in phrases])
    assert ["red", "pink"] in found


def test_unknown_words_are_named(captures, scene):
    found = captures.grounded(scene[0], "a red helicopter and hexagons", next(iter(captures.settings.models)))
    assert "“helicopter”, “hexagons” (it knows rectangle" in found.notes[0]


def test_a_small_copy_gives_the_same_attention(captures, scene, tmp_path):
    name, place = list(captures.settings.models.items())[1]
    assert write_small(place, tmp_path / "small") < 1e6
    again = Captures(SpaceSettings(models={"again": tmp_path / "small"})).grounded(*scene, "again")
    assert np.array_equal(again.example.attention, captures.grounded(*scene, name).example.attention)


def test_the_small_vision_language_model_answers_without_a_network(captures, scene, monkeypatch):
    """Its own heads are shown; the answer of another model of the visitor is not kept for it."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (name,) = SMALL_VLM
    lens = captures.look(scene[0], "Describe the image.", name)
    assert "cross" in lens.answer and lens.heads_from.endswith("heads.json")
    assert captures.look(scene[0], " Describe the  image. ", name) is lens, "a second click computes nothing"
    assert len(captures.look(scene[0], "Describe the image.", name, "all").heads) == 16


def test_a_small_copy_of_a_vision_language_model_answers_alike(tmp_path, scene):
    source = save_llava(tmp_path / "llava")
    model = AutoModelForImageTextToText.from_pretrained(source)
    model.half().float().save_pretrained(source)  # so that rounding decides between no two tokens
    write_small(source, tmp_path / "small")
    settings = SpaceSettings()
    first, second = (
        Captures(settings).look(scene[0], "a red ball", str(folder)) for folder in (source, tmp_path / "small")
    )
    assert first.answer == second.answer
    assert np.allclose(first.attention, second.attention, atol=1e-6)


# Mistakes of visitors


@pytest.mark.parametrize(
    ("caption", "line"), [(" ", "The caption is empty"), ("?!", "no word"), ("a " * LONGEST_TEXT, "shorten it")]
)
def test_captions_that_cannot_be_read(captures, scene, caption, line):
    with pytest.raises(VisitorError, match=line):
        captures.grounded(scene[0], caption, next(iter(captures.settings.models)))
    with pytest.raises(VisitorError, match=line.replace("caption", "question")):
        captures.look(scene[0], caption, next(iter(SMALL_VLM)))


@pytest.mark.parametrize("name", ["", "nobody/nothing", "a b", "../..", "/etc", "x" * 200])
def test_checkpoints_that_do_not_exist(captures, scene, name):
    with pytest.raises(VisitorError) as found:
        captures.grounded(*scene, name)
    assert "\n" not in str(found.value) and (name in str(found.value))


def test_visitors_of_a_public_page_name_no_folders(tmp_path):
    private = Captures(replace(SpaceSettings(), folders=False))
    for name in (str(tmp_path), "space/models", "space"):
        with pytest.raises(VisitorError, match="ORG/NAME"):
            private.place(name)
    assert private.place("org/name") == "org/name"


def test_files_that_are_no_pictures(tmp_path):
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "cut.jpg").write_bytes((SCENES / "11313.jpg").read_bytes()[:500])
    for name in ("notes.txt", "cut.jpg"):
        with pytest.raises(VisitorError, match=f"^{name} is not a picture that can be read"):
            open_picture(tmp_path / name)


def test_a_small_file_that_needs_much_memory_has_too_many_pixels(tmp_path, monkeypatch):
    def convert(*_):
        raise MemoryError

    Image.new("RGB", (4200, 4200)).save(tmp_path / "large.png")
    monkeypatch.setattr(open_images, "_upright", convert)
    with pytest.raises(VisitorError, match=r"^large\.png has too many pixels"):
        open_picture(tmp_path / "large.png")

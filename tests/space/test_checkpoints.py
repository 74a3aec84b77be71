# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The checkpoints behind the page of the Space, and what a visitor may do wrong."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from grounded_attention.space.loading import LONGEST_TEXT, Captures, VisitorError, open_picture
from grounded_attention.space.page import NO_SECOND, caption_phrases, regions_page
from grounded_attention.space.settings import SCENES, SMALL_VLM, SpaceSettings, read_scenes
from grounded_attention.utils import open_images


@pytest.fixture(scope="module")
def captures():
    return Captures(SpaceSettings())


@pytest.fixture(scope="module")
def scene():
    first = read_scenes()[3]
    return open_picture(first.path), first.caption


def told(page):
    """The data of the page's explorers."""
    return json.loads(re.search(r'id="explorer-data">(.*?)</script>', page)[1])["explorers"]


def test_phrases_are_runs_of_content_words():
    caption = "the small red ball near a cube"
    assert [(phrase.text, caption[phrase.start : phrase.end]) for phrase in caption_phrases(caption)] == [
        ("small red ball", "small red ball"),
        ("cube", "cube"),
    ]
    assert caption_phrases("it is of the") == []


def test_the_page_compares_checkpoints_and_has_their_notes(captures, scene):
    image, caption = scene  # a red cross under a small pink hoop
    first, second = captures.settings.models
    (shown,) = told(regions_page(captures, image, caption, first, second))
    assert shown["models"] == [first, second]
    assert shown["examples"][0]["texts"][1] == "red cross · small pink hoop"
    (alone,) = told(regions_page(captures, image, caption, first, NO_SECOND))
    assert alone["models"] == [first]
    hostile = regions_page(captures, image, "a red helicopter </script><i>", first, second)
    assert "“helicopter”" in hostile
    assert "<i>" not in hostile.replace('<i class="scale"', "")
    assert hostile.count("“helicopter”") == 1, "one note for both"


def test_checkpoints_of_other_sizes_have_an_explorer_each(captures, scene):
    shapes = iter([2, 3])

    class Others:
        def grounded(self, image, caption, name):
            found = captures.grounded(image, caption, next(iter(captures.settings.models)))
            layers = next(shapes)
            example = replace(
                found.example, layers=found.example.layers[:layers], attention=found.example.attention[:layers]
            )
            return replace(found, name=name, example=replace(example, back=None))

    assert [each["models"] for each in told(regions_page(Others(), *scene, "a", "b"))] == [["a"], ["b"]]


def test_supervised_attention_finds_what_the_phrases_name(captures, scene):
    """The hoop and the cross of this scene are the only small pink and the only cross-shaped objects."""
    example = captures.grounded(*scene, list(captures.settings.models)[1]).example
    rows = [example.attention[:, :, example.words_of(phrase)].mean((1, 2)) for phrase in caption_phrases(scene[1])]
    found = [[example.labels[region] for region in regions] for regions in np.stack(rows, 1).argmax(-1)]
    assert ["red", "pink"] in found


def test_the_small_checkpoints_read_the_scenes(captures, scene):
    image, caption = scene  # a red cross under a small pink hoop
    before, after = (captures.grounded(image, caption, name) for name in captures.settings.models)
    assert before.example.attention.shape == after.example.attention.shape
    assert not before.notes
    assert not after.notes
    assert captures.grounded(image, caption, after.name) is after, "a second click computes nothing"


def test_unknown_words_are_named(captures, scene):
    found = captures.grounded(scene[0], "a red helicopter and hexagons", next(iter(captures.settings.models)))
    assert "“helicopter”, “hexagons”;" in found.notes[0]


def test_the_small_vision_language_model_answers_without_a_network(captures, scene, monkeypatch):
    """Its own heads are shown; the answer of another model of the visitor is not kept for it."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (name,) = SMALL_VLM
    lens = captures.look(scene[0], "Describe the image.", name)
    assert "cross" in lens.answer
    assert lens.heads_from.endswith("heads.json")
    assert captures.look(scene[0], " Describe the  image. ", name) is lens, "a second click computes nothing"
    assert len(captures.look(scene[0], "Describe the image.", name, "all").heads) == 16


# Mistakes of visitors


@pytest.mark.parametrize(
    "caption, line", [(" ", "The caption is empty"), ("?!", "no word"), ("a " * LONGEST_TEXT, "shorten it")]
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
    assert "\n" not in str(found.value)
    assert name in str(found.value)


def test_visitors_of_a_public_page_name_no_folders(tmp_path):
    private = Captures(replace(SpaceSettings(), folders=False))
    for name in (str(tmp_path), "tests/space", "tests"):
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

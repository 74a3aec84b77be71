# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Drawn screens: what every one of them must have, and that the readers of real sets read them."""

import json
import random
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from transformers import AutoProcessor

from grounded_attention import grounded_rows
from grounded_attention.commands.draw_screens import main
from grounded_attention.dataset_scripts.builders.rows import Rows
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.scenes.screen_files import PATCH, PICTURE, paint, write_screens
from grounded_attention.dataset_scripts.scenes.screens import BY_LABEL, BY_PURPOSE, PLATFORMS, ask, draw_screen
from grounded_attention.utils.boxes import box_iou

COUNT = 40
SEED = 3
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("screens")
    write_screens(root, COUNT, SEED)
    return root


@pytest.fixture(scope="module")
def screens():
    return [draw_screen(random.Random(number)) for number in range(300)]


def is_in_place(text, element, screen):
    """Whether "the last entry of the menu" or "the button below Save" names an element by its place in its row."""
    row = [other for other in screen.elements if other.group == element.group]
    row.sort(key=lambda other: other.box[1 if element.down else 0])
    at = row.index(element)
    if " of the " in text:
        ordinal = text.split()[1]
        return at == (len(row) - 1 if ordinal == "last" else ORDINALS.index(ordinal))
    return text.split(" below " if element.down else " right of ")[1] == row[at - 1].label


def test_each_instruction_means_one_element(screens):
    """By its label or purpose, which no other has; by its place, which is found again from the boxes alone."""
    for number, screen in enumerate(screens):
        asked = list(ask(screen, random.Random(number)))
        assert len({text for _, text, _ in asked}) == len(asked)
        assert {index for index, *_ in asked} == {*range(len(screen.elements))}
        names = [name for element in screen.elements for name in (element.label, element.purpose)]
        for index, text, kind in asked:
            element = screen.elements[index]
            if kind in (BY_LABEL, BY_PURPOSE):
                words = element.purpose if kind == BY_PURPOSE else element.label
                assert text.endswith(words)
                assert names.count(words) == 1
            else:
                assert is_in_place(text, element, screen)


def boxes_of(screen):
    return np.array([element.box for element in screen.elements])


def test_elements_are_inside_and_drawn(screens):
    for screen in screens:
        pixels = np.asarray(paint(screen), dtype=int)
        boxes = boxes_of(screen)
        assert (boxes >= 0).all()
        assert (boxes[:, :2] < boxes[:, 2:]).all()
        assert (boxes[:, 2:] <= [screen.width, screen.height]).all()
        for x1, y1, x2, y2 in (2 * boxes).astype(int):
            assert np.ptp(pixels[y1:y2, x1:x2], axis=(0, 1)).max() > 60


def test_elements_are_apart(screens):
    for screen in screens:
        boxes = boxes_of(screen)
        assert np.count_nonzero(box_iou(boxes, boxes)) == len(boxes)  # of a box with itself


def test_sizes_types_and_colours_are_covered(screens):
    elements = [element for screen in screens for element in screen.elements]
    kinds = Counter(element.kind for element in elements)
    assert {*kinds} == {"icon", "button", "menu", "link", "field", "entry"}
    assert min(kinds.values()) > 20
    assert len({element.size for element in elements if element.shown}) >= 4
    assert {screen.platform for screen in screens} == {*PLATFORMS}
    dark = [screen.colours["paper"][0] < 100 for screen in screens]
    assert 0.2 < np.mean(dark) < 0.6


def test_elements_are_smaller_and_larger_than_an_image_token(screens):
    """Of the small processor."""
    tokens = []
    for screen in screens:
        boxes = boxes_of(screen)
        shares = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) / (screen.width * screen.height)
        tokens.extend(shares * (PICTURE / PATCH) ** 2)
    assert np.mean(np.array(tokens) < 1) > 0.2
    assert np.mean(np.array(tokens) > 2) > 0.1


def test_the_readers_of_real_sets_read_them(folder):
    """ScreenSpot's columns give the groups of its table; GUI-Actor's form has the same boxes."""
    rows = list(grounded_rows(str(folder / "test")))
    assert len(rows) == 24
    groups = {row["phrases"][0]["types"][0] for row in grounded_rows(str(folder / "train"))}
    assert groups == {f"{place} {kind}" for place in ("desktop", "mobile", "web") for kind in ("icon", "text")}
    boxes = {}
    for row in grounded_rows(str(folder / "test.json")):
        assert len(row["phrases"]) == len(row["messages"]) / 2
        for phrase in row["phrases"]:
            boxes[row["image_id"].split("/")[-1], phrase["text"]] = phrase["boxes"][0]
    for row in rows:
        assert row["image"].size == (row["width"], row["height"])
        [phrase] = row["phrases"]
        np.testing.assert_allclose(boxes[row["image_id"].split("/")[-1], phrase["text"]], phrase["boxes"][0])


def test_the_small_processor_knows_all_words(folder):
    tokenizer = AutoProcessor.from_pretrained(folder / "processor").tokenizer
    texts = [row["text"].replace(" I ", " ") for row in grounded_rows(str(folder / "test"))]  # words are in lower case
    for text in [*texts, "[12, 0, 345, 1000]"]:
        assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"]


def test_same_seed_same_files_with_any_number_of_processes(folder, tmp_path):
    assert main(["--output", str(tmp_path), "--images", str(COUNT), "--seed", str(SEED), "--num-proc", "2"]) == 0
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    assert len(paths) > COUNT
    for path in paths:
        assert path.read_bytes() == (tmp_path / path.relative_to(folder)).read_bytes()
    pictures = list((folder / "train").glob("*.png"))
    assert pictures
    assert {Image.open(path).format for path in pictures} == {"PNG"}


def first_screen(folder):
    """The bytes of the picture of the first screen, whatever its split."""
    [picture] = folder.glob("*/000000.png")
    return picture.read_bytes()


def test_screens_of_another_seed_are_others_and_replace_nothing_unasked(folder, tmp_path):
    write_screens(tmp_path, 6, SEED)
    assert first_screen(tmp_path) == first_screen(folder)
    with pytest.raises(DataError, match="seed"):
        write_screens(tmp_path, 6, SEED + 1)
    assert first_screen(tmp_path) == first_screen(folder)
    write_screens(tmp_path, 6, SEED + 1, force=True)
    assert first_screen(tmp_path) != first_screen(folder)
    assert json.loads((tmp_path / "scenes.json").read_text())["seed"] == SEED + 1


ROW = '{"image": "p.png", "instruction": "open it", "data_type": "icon", "data_source": "ios", "bbox": BOX}\n'
BUTTON = (
    '{"image_path": "p.png", "image_size": [400, 300], "instruction": "open it", "GUI_types": ["Icon"], '
    '"box_type": "bbox", "box_coordinates": [10, 10, 30, 30]}\n'
)
REFUSED = BUTTON.replace('"bbox"', '"refusal"').replace("10, 10, 30, 30", "-1, -1, -1, -1")
CLICK = (
    '{"image": "p.png", "conversations": [{"from": "human", "value": "<image>open the menu"}, '
    '{"from": "gpt", "value": "pyautogui.click(x=0.5, y=0.06)", "bbox_gt": BOX}]}\n'
)


def with_box(row, box):
    return row.replace("BOX", box)


GOOD = with_box(ROW, "[0.1, 0.2, 0.3, 0.4]")
CLICKED = with_box(CLICK, "[0.1, 0.1, 0.2, 0.2]")


@pytest.fixture
def builder_of(tmp_path):
    """Makes the builder of a file with these lines."""
    Image.new("RGB", (400, 300)).save(tmp_path / "p.png")

    def builder_of(form, lines):
        (tmp_path / "rows.jsonl").write_text(lines)
        return Rows(data_dir=str(tmp_path / "rows.jsonl"), form=form, cache_dir=str(tmp_path / "cache"))

    return builder_of


@pytest.mark.parametrize(
    "form, good, bad, reason",
    [
        ("refcoco", GOOD, with_box(ROW, "null"), "phrases without one box"),
        ("refcoco", GOOD, with_box(ROW, "[[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.6, 0.6]]"), "phrases without one box"),
        ("refcoco", BUTTON, REFUSED, "phrases without one box"),
        ("llava_instruct", CLICKED, with_box(CLICK, "[1.1, 0.1, 1.2, 0.2]"), "left out: a box that is"),
        ("llava_instruct", CLICKED, with_box(CLICK, "[0.2, 0.2, 0.2, 0.2]"), "left out: a box that is"),
    ],
    ids=["negative", "two boxes", "refusal", "outside", "without area"],
)
def test_rows_that_point_at_nothing_are_counted(builder_of, form, good, bad, reason):
    builder = builder_of(form, good * 30 + bad)
    builder.download_and_prepare()
    assert [count for name, count in builder.report["train"].items() if name.startswith(reason)] == [1]
    boxes = [row.get("box") or row["phrases"] for row in builder.as_dataset("train")]
    assert sum(map(bool, boxes)) == 30


@pytest.mark.parametrize("lines", [GOOD + with_box(ROW, "[1.2, 0.2, 1.3, 0.4]"), with_box(ROW, "null")])
def test_a_box_outside_of_a_screen_and_rows_of_refusals_alone_are_refused_in_one_line(builder_of, lines):
    with pytest.raises(DataError, match=r"\.jsonl") as refused:
        builder_of("refcoco", lines).download_and_prepare()
    assert "\n" not in str(refused.value)

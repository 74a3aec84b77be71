# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Drawn screens: what every one of them must have, and that the readers of real sets read them."""

import json
import random
from collections import Counter, defaultdict

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


def test_each_instruction_means_one_element(screens):
    """By its label or purpose, which no other has; by its place, which is found again from the boxes alone."""
    for number, screen in enumerate(screens):
        asked = [*ask(screen, random.Random(number))]
        assert len({text for _, text, _ in asked}) == len(asked)
        assert {index for index, *_ in asked} == {*range(len(screen.elements))}
        named = Counter(each.label for each in screen.elements) + Counter(each.purpose for each in screen.elements)
        for index, text, kind in asked:
            element = screen.elements[index]
            if kind in (BY_LABEL, BY_PURPOSE):
                words = element.purpose if kind == BY_PURPOSE else element.label
                assert text.endswith(words)
                assert named[words] == 1
                continue
            row = [each for each in screen.elements if each.group == element.group]
            row.sort(key=lambda each: each.box[1] if each.down else each.box[0])
            at = row.index(element)
            if " of the " in text:
                ordinal = text.split()[1]
                assert at == (len(row) - 1 if ordinal == "last" else ORDINALS.index(ordinal))
            else:
                assert text.split(" below " if element.down else " right of ")[1] == row[at - 1].label


def test_elements_are_inside_and_apart_and_drawn(screens):
    for screen in screens:
        pixels = np.asarray(paint(screen), dtype=int)
        boxes = [each.box for each in screen.elements]
        for x1, y1, x2, y2 in boxes:
            assert 0 <= x1 < x2 <= screen.width
            assert 0 <= y1 < y2 <= screen.height
            assert np.ptp(pixels[int(2 * y1) : int(2 * y2), int(2 * x1) : int(2 * x2)], axis=(0, 1)).max() > 60
        for number, first in enumerate(boxes):
            for second in boxes[:number]:
                assert min(first[2], second[2]) <= max(first[0], second[0]) or min(first[3], second[3]) <= max(
                    first[1], second[1]
                )


def test_sizes_types_and_looks_are_covered(screens):
    kinds = Counter(each.kind for screen in screens for each in screen.elements)
    assert {*kinds} == {"icon", "button", "menu", "link", "field", "entry"}
    assert min(kinds.values()) > 20
    assert {screen.platform for screen in screens} == {*PLATFORMS}
    dark = [screen.colours["paper"][0] < 100 for screen in screens]
    assert 0.2 < np.mean(dark) < 0.6
    assert len({each.size for screen in screens for each in screen.elements if each.shown}) >= 4
    tokens = [  # how many of the small processor's image tokens an element has
        (each.box[2] - each.box[0])
        * (each.box[3] - each.box[1])
        / screen.width
        / screen.height
        * (PICTURE / PATCH) ** 2
        for screen in screens
        for each in screen.elements
    ]
    assert np.mean(np.array(tokens) < 1) > 0.2
    assert np.mean(np.array(tokens) > 2) > 0.1


def test_the_readers_of_real_sets_read_them(folder):
    """ScreenSpot's columns give the groups of its table; GUI-Actor's form has the same boxes."""
    rows = [*grounded_rows(str(folder / "test"))]
    assert len(rows) == 24
    assert all(row["image"].size == (row["width"], row["height"]) for row in rows)
    groups = Counter(row["phrases"][0]["types"][0] for row in grounded_rows(str(folder / "train")))
    assert {*groups} == {f"{place} {kind}" for place in ("desktop", "mobile", "web") for kind in ("icon", "text")}
    boxes = defaultdict(dict)
    for row in grounded_rows(str(folder / "test.json")):
        assert len(row["phrases"]) == len(row["messages"]) / 2
        boxes[row["image_id"].split("/")[-1]] |= {each["text"]: each["boxes"][0] for each in row["phrases"]}
    for row in rows:
        [phrase] = row["phrases"]
        np.testing.assert_allclose(boxes[row["image_id"].split("/")[-1]][phrase["text"]], phrase["boxes"][0])
    processor = AutoProcessor.from_pretrained(folder / "processor")
    for text in [row["text"].replace(" I ", " ") for row in rows] + ["[12, 0, 345, 1000]"]:  # words are in lower case
        assert processor.tokenizer.unk_token_id not in processor.tokenizer(text)["input_ids"]


def test_same_seed_same_files_and_nothing_else_is_replaced(folder, tmp_path, capsys):
    assert main(["--output", str(tmp_path), "--images", str(COUNT), "--seed", str(SEED), "--num-proc", "2"]) == 0
    names = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    assert len(names) > COUNT
    for name in names:
        assert (folder / name).read_bytes() == (tmp_path / name).read_bytes()
    with pytest.raises(DataError, match="seed"):
        write_screens(tmp_path, COUNT, SEED + 1)
    write_screens(tmp_path, COUNT, SEED + 1, force=True)
    assert (tmp_path / "test.json").read_bytes() != (folder / "test.json").read_bytes()
    assert json.loads((tmp_path / "scenes.json").read_text())["seed"] == SEED + 1
    picture = next((tmp_path / "train").glob("*.png"))
    assert Image.open(picture).format == "PNG"


ROW = {
    "image": "p.png",
    "instruction": "open it",
    "bbox": [0.1, 0.2, 0.3, 0.4],
    "data_type": "icon",
    "data_source": "ios",
}
REFUSED = {
    "image_path": "p.png",
    "image_size": [400, 300],
    "instruction": "open it",
    "GUI_types": ["Icon"],
    "box_type": "refusal",
    "box_coordinates": [-1, -1, -1, -1],
}
BUTTON = {**REFUSED, "box_type": "bbox", "box_coordinates": [10, 10, 30, 30]}


def clicked(box):
    answer = {"from": "gpt", "value": "pyautogui.click(x=0.5, y=0.06)", "bbox_gt": box}
    return {"image": "p.png", "conversations": [{"from": "human", "value": "<image>open the menu"}, answer]}


@pytest.mark.parametrize(
    ("form", "good", "bad", "reason"),
    [
        ("refcoco", ROW, {**ROW, "bbox": None}, "phrases without one box"),
        ("refcoco", ROW, {**ROW, "bbox": [ROW["bbox"], [0.5, 0.5, 0.6, 0.6]]}, "phrases without one box"),
        ("refcoco", BUTTON, REFUSED, "phrases without one box"),
        ("llava_instruct", clicked([0.1, 0.1, 0.2, 0.2]), clicked([1.1, 0.1, 1.2, 0.2]), "left out: a box that is"),
        ("llava_instruct", clicked([0.1, 0.1, 0.2, 0.2]), clicked([0.2, 0.2, 0.2, 0.2]), "left out: a box that is"),
    ],
    ids=["negative", "two boxes", "refusal", "outside", "without area"],
)  # fmt: skip
def test_rows_that_point_at_nothing_are_counted(form, good, bad, reason, tmp_path):
    Image.new("RGB", (400, 300)).save(tmp_path / "p.png")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [good] * 30 + [bad]))
    builder = Rows(data_dir=str(tmp_path / "rows.jsonl"), form=form, cache_dir=str(tmp_path / "cache"))
    builder.download_and_prepare()
    assert [count for name, count in builder.report["train"].items() if name.startswith(reason)] == [1]
    boxes = [row.get("box") or row["phrases"] for row in builder.as_dataset("train")]
    assert sum(map(bool, boxes)) == 30


def test_a_box_outside_of_a_screen_and_rows_of_refusals_alone_are_refused_in_one_line(tmp_path):
    Image.new("RGB", (400, 300)).save(tmp_path / "p.png")
    for number, rows in enumerate(([ROW, {**ROW, "bbox": [1.2, 0.2, 1.3, 0.4]}], [{**ROW, "bbox": None}])):
        (tmp_path / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        builder = Rows(data_dir=str(tmp_path / f"{number}.jsonl"), form="refcoco", cache_dir=str(tmp_path / "cache"))
        with pytest.raises(DataError, match=r"\.jsonl") as refused:
            builder.download_and_prepare()
        assert "\n" not in str(refused.value)

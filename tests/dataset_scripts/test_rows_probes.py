# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows of probes, each written with the columns of its own files."""

import json

import pytest
from PIL import Image

from grounded_attention import grounded_rows
from grounded_attention.dataset_scripts.files.errors import DataError
from tests.dataset_scripts.probe_rows import FALSE, PROBES, TRUE


@pytest.fixture
def folder(tmp_path):
    for name in ("p.png", "q.png"):
        Image.new("RGB", (8, 6), "red" if name == "p.png" else "blue").save(tmp_path / name)
    return tmp_path


def read(folder, text, name="probe.json"):
    (folder / name).write_text(text)
    return grounded_rows(folder / name)


@pytest.mark.parametrize("probe", PROBES)
def test_captions_to_match(probe, folder):
    text, expected = PROBES[probe]
    rows = list(read(folder, text))
    assert [(row["captions"], row["label"], row["group"]) for row in rows] == expected
    for row in rows:
        assert row["image"].size == (8, 6)
        assert row["phrases"] == []


def test_a_caption_that_people_did_not_choose_is_no_probe(folder):
    rows = read(folder, PROBES["VALSE"][0])
    assert len(list(rows)) == 1
    assert sum(rows.report.dropped.values()) == 1


def test_captions_and_pictures_of_winoground_are_pairs(folder):
    first, second = read(folder, PROBES["Winoground"][0])
    assert first["pair"] == second["pair"] == "7"
    assert first["image_id"] != second["image_id"]
    assert first["image"].getpixel((0, 0)) == (255, 0, 0)
    assert second["image"].getpixel((0, 0)) == (0, 0, 255)


@pytest.mark.parametrize(
    "name, group, pair",
    [
        ("mug_left_of_knife", "left", "data/mug knife"),
        ("mug_in-front_of_knife", "in-front", "data/mug knife"),
        ("beer-bottle_on_table", "on", "data/beer-bottle table"),
        ("a_photo_of_cups", "", ""),
        ("p", "", ""),
    ],
)
def test_pictures_of_two_objects_are_scored_together(name, group, pair, folder):
    Image.new("RGB", (8, 6)).save(folder / f"{name}.jpeg")
    row = {"image_path": f"data/{name}.jpeg", "caption_options": [TRUE, FALSE, "a", "b"]}
    (folder / "probe.json").write_text(json.dumps([row]))
    [row] = grounded_rows(folder / "probe.json", images=folder)
    assert row["group"] == group
    assert row["pair"] == pair


@pytest.mark.parametrize(
    "row",
    [
        '{"image_path": "p.png", "caption_options": ["a dog"]}',
        '{"image_path": "p.png", "caption_options": [null, "a cat", "a dog"]}',  # the first one would be wrong
        '{"filename": "p.png", "caption": "", "negative_caption": "a cat"}',
        '{"id": null, "image_0": "p.png", "image_1": "q.png", "caption_0": "a dog", "caption_1": "a cat"}',
        '{"id": 7, "image_0": "p.png", "image_1": "q.png", "caption_0": "a dog", "caption_1": " "}',
        '{"image": "p.png", "image_link": "x", "caption": "a dog", "label": 2, "relation": "under"}',
        '{"image": "p.png", "image_link": "x", "caption": null, "label": 1, "relation": "under"}',
    ],
)
def test_rows_that_say_no_right_caption_are_refused(row, folder):
    with pytest.raises(DataError, match=r"probe\.json"):
        list(read(folder, f"[{row}]"))


ASKED = "Is there a dog in the image?"


@pytest.mark.parametrize(
    "text, sampling",
    [
        ('{"question_id": 1, "image": "p.png", "text": "Is there a dog in the image?", "label": "no"}', "all"),
        (
            '{"question_id": "1", "question": "Is there a dog in the image?", "answer": "no", "image_source": "p", '
            '"image": "p.png", "category": "popular"}',
            "popular",
        ),
    ],
)
def test_questions_of_pope(text, sampling, folder):
    [row] = read(folder, text, "probe.jsonl")
    assert row["text"] == ASKED
    assert row["answer"] == "no"
    assert row["sampling"] == sampling


QUERY = '{"id": 1005, "image": "p.png", "query": "Is there a dog in the image?"}'
DESCRIBE = '{"id": 1, "image": "p.png", "query": "Describe this image."}'
GENERATIVE = '{"id": 1, "type": "generative", "truth": ["dog"], "hallu": ["cat"]}'
VERDICT = '{"id": 1005, "type": "discriminative-attribute-state", "truth": "no", "hallu": []}'


def test_amber_joins_its_files(folder):
    (folder / "query").mkdir()
    (folder / "query" / "query_all.json").write_text(f"[{DESCRIBE}, {QUERY}]")
    (folder / "query" / "query_discriminative.json").write_text(f"[{QUERY}]")
    annotations = folder / "annotations.json"
    annotations.write_text(f"[{GENERATIVE}, {VERDICT}]")
    [row] = grounded_rows(folder)
    assert row["text"] == ASKED
    assert row["answer"] == "no"
    assert row["sampling"] == "attribute-state"
    annotations.write_text(f"[{GENERATIVE}]")
    with pytest.raises(ValueError, match="1005"):
        list(grounded_rows(folder))


def test_reviewed_references_keep_their_flag(folder):
    row = '{"image": "p.png", "caption": "a dog", "bbox": [1, 1, 3, 4], "ori_category_id": "1", "caption_quality": 0}'
    first, second = read(folder, row + "\n" + row.replace('quality": 0', 'quality": 1'), "probe.jsonl")
    assert first["caption_quality"] == 0
    assert second["caption_quality"] == 1

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


@pytest.mark.parametrize("probe", PROBES)
def test_captions_to_match(probe, folder):
    content, expected = PROBES[probe]
    (folder / "probe.json").write_text(json.dumps(content))
    rows = grounded_rows(folder / "probe.json")
    read = list(rows)
    assert [(row["captions"], row["label"], row["group"]) for row in read] == expected
    assert all(row["image"].size == (8, 6) and row["phrases"] == [] for row in read)
    if probe == "VALSE":  # a caption that people did not choose is no probe
        assert sum(rows.report.dropped.values()) == 1
    if probe == "Winoground":
        assert [row["pair"] for row in read] == ["7", "7"]
        assert len({row["image_id"] for row in read}) == 2
        assert [row["image"].getpixel((0, 0)) for row in read] == [(255, 0, 0), (0, 0, 255)]


def test_pictures_of_two_objects_are_scored_together(folder):
    names = ["mug_left_of_knife", "mug_in-front_of_knife", "beer-bottle_on_table", "a_photo_of_cups", "p"]
    for name in names:
        Image.new("RGB", (8, 6)).save(folder / f"{name}.jpeg")
    rows = [{"image_path": f"data/{name}.jpeg", "caption_options": [TRUE, FALSE, "a", "b"]} for name in names]
    (folder / "probe.json").write_text(json.dumps(rows))
    read = list(grounded_rows(folder / "probe.json", images=folder))
    expected = [("left", "data/mug knife"), ("in-front", "data/mug knife"), ("on", "data/beer-bottle table")]
    assert [(row["group"], row["pair"]) for row in read] == [*expected, ("", ""), ("", "")]


@pytest.mark.parametrize(
    ("probe", "change"),
    [
        ("What'sUp", {"caption_options": [TRUE]}),
        ("What'sUp", {"caption_options": [None, FALSE, "a dog"]}),  # the first one would be wrong
        ("SugarCrepe", {"caption": ""}),
        ("Winoground", {"id": None}),
        ("Winoground", {"caption_1": " "}),
        ("VSR", {"label": 2}),
        ("VSR", {"caption": None}),
    ],
)
def test_rows_that_say_no_right_caption_are_refused(probe, change, folder):
    content = PROBES[probe][0]
    row = content[0] if isinstance(content, list) else content["0"]
    (folder / "probe.json").write_text(json.dumps([row | change]))
    with pytest.raises(DataError, match=r"probe\.json"):
        list(grounded_rows(folder / "probe.json"))


ASKED = "Is there a dog in the image?"


@pytest.mark.parametrize(
    ("record", "sampling"),
    [
        ({"question_id": 1, "image": "p.png", "text": ASKED, "label": "no"}, "all"),
        ({"question_id": "1", "question": ASKED, "answer": "no", "image_source": "p", "image": "p.png",
          "category": "popular"}, "popular"),
    ],
)  # fmt: skip
def test_questions_of_pope(record, sampling, folder):
    (folder / "probe.jsonl").write_text(json.dumps(record))
    [row] = grounded_rows(folder / "probe.jsonl")
    assert row["text"] == ASKED
    assert row["answer"] == "no"
    assert row["sampling"] == sampling


def test_amber_joins_its_files(folder):
    (folder / "query").mkdir()
    queries = [{"id": n, "image": "p.png", "query": q} for n, q in ((1, "Describe this image."), (1005, ASKED))]
    for name, part in (("all", queries), ("discriminative", queries[1:])):  # of which one has all
        (folder / "query" / f"query_{name}.json").write_text(json.dumps(part))
    about = [
        {"id": 1, "type": "generative", "truth": ["dog"], "hallu": ["cat"]},
        {"id": 1005, "type": "discriminative-attribute-state", "truth": "no", "hallu": []},
    ]
    (folder / "annotations.json").write_text(json.dumps(about))
    rows = grounded_rows(folder)
    assert [(row["text"], row["answer"], row["sampling"]) for row in rows] == [(ASKED, "no", "attribute-state")]
    (folder / "annotations.json").write_text(json.dumps(about[:1]))
    with pytest.raises(ValueError, match="1005"):
        list(grounded_rows(folder))


def test_reviewed_references_keep_their_flag(folder):
    lines = [{"image": "p.png", "caption": TRUE, "bbox": [1, 1, 3, 4], "ori_category_id": "1", "caption_quality": q}
             for q in (0, 1)]  # fmt: skip
    (folder / "probe.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert [row["caption_quality"] for row in grounded_rows(folder / "probe.jsonl")] == [0, 1]

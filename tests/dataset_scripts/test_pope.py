# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""POPE's questions from COCO's instances: the three samplings against loops over a handful of images."""

import json

import numpy as np
import pytest

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.builders.pope import ObjectCounts, choose_objects, object_question
from grounded_attention.dataset_scripts.files.errors import DataError
from tests.helpers.tiny_scenes import tiny_scenes

NAMES = ["apple", "bench", "cat", "dog", "egg", "fork", "goat"]


def draw_images(count=40, seed=0):
    rng = np.random.default_rng(seed)
    return [{NAMES[i] for i in rng.permutation(len(NAMES))[: rng.integers(1, 6)]} for _ in range(count)]


def test_absent_objects_of_the_samplings_by_loops():
    images = draw_images()
    counts = ObjectCounts.of(images)
    for number, present in enumerate(images):
        found = choose_objects(present, counts, 4, np.random.default_rng(number))
        absent = [name for name in NAMES if name not in present]
        size = min(2, len(present), len(absent))
        asked = [shown for shown, _ in found.values()]
        assert asked[0] == asked[1] == asked[2]
        assert set(asked[0]) <= present
        assert len(asked[0]) == size
        images_with = {name: sum(name in other for other in images) for name in absent}
        together = {name: sum(sum(name in o and p in o for o in images) for p in present) for name in absent}
        for sampling, wanted in (("popular", images_with), ("adversarial", together)):
            assert found[sampling][1] == sorted(absent, key=lambda name: (-wanted[name], name))[:size]
        drawn = found["random"][1]
        assert len(set(drawn)) == size
        assert set(drawn) <= set(absent)


def test_the_words_of_a_question():
    assert object_question("dog") == "Is there a dog in the image?"
    assert object_question("umbrella") == "Is there an umbrella in the image?"


def write_instances(folder, images, /, **changes):
    numbers = {name: place + 1 for place, name in enumerate(NAMES)}
    content = {
        "images": [
            {"id": i, "file_name": f"COCO_val2014_{i}.jpg", "width": 9, "height": 9} for i in range(len(images))
        ],
        # Two objects of one kind count once.
        "annotations": [
            {"id": 100 * i + k, "image_id": i, "category_id": numbers[name], "bbox": [0, 0, 1, 1]}
            for i, present in enumerate(images)
            for k, name in enumerate([*sorted(present), min(present)])
        ],
        "categories": [{"id": number, "name": name} for name, number in numbers.items()],
        **changes,
    }
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    (folder / "annotations" / "instances_val2014.json").write_text(json.dumps(content))


def build(folder, cache, **options):
    builder = BUILDERS["pope"](data_dir=str(folder), cache_dir=str(cache), **options)
    builder.download_and_prepare()
    return builder.as_dataset("test")


def test_rows(tmp_path):
    images = draw_images()
    write_instances(tmp_path / "coco", images)
    (tmp_path / "coco" / "few.txt").write_text("3\n7\n11\n20\n21\n")
    rows = build(tmp_path / "coco", tmp_path / "cache", images=12)
    enough = {str(i) for i, present in enumerate(images) if len(present) >= 3}
    asked = set(rows["image_id"])
    assert len(asked) == 12
    assert asked <= enough
    for row in rows:
        present = images[int(row["image_id"])]
        named = row["example_id"].split(":")[-1]
        assert row["answers"] == ["yes" if named in present else "no"]
        assert row["text"] == object_question(named)
        assert row["file_name"] == f"COCO_val2014_{row['image_id']}.jpg"
    for sampling in ("random", "popular", "adversarial"):
        answers = [row["answers"][0] for row in rows if row["sampling"] == sampling]
        assert answers.count("yes") == answers.count("no") > 20
    again = build(tmp_path / "coco", tmp_path / "again", images=12)
    assert again.to_list() == rows.to_list()
    listed = build(tmp_path / "coco", tmp_path / "cache", image_list="few.txt", image_id_format="number")
    assert set(listed["image_id"]) <= {"3", "7", "11", "20", "21"} & enough


def test_scenes(tmp_path):
    scenes = tiny_scenes(tmp_path / "scenes")
    rows = build(scenes / "refcoco+", tmp_path / "cache", instances="instances.json", least_objects=2)
    asked = {key.split(":")[-1] for key in rows["example_id"]}
    assert asked <= {
        "ball",
        "cube",
        "cone",
        "cylinder",
        "star",
        "cross",
        "ring",
        "heart",
    }
    assert all((scenes / "flickr30k-images" / name).is_file() for name in rows["file_name"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"questions": 3}, "bad option questions"),
        ({"images": 0}, "bad option images"),
        ({"seed": -1}, "bad option seed: found -1, expected greater than or equal to 0"),
        ({"seed": 2**32}, "bad option seed: found 4294967296"),
        ({"least_objects": 8}, "no image has 8 different objects"),
        ({"splits": ["train"]}, "no such split"),
        ({"instances": "none.json"}, "the file is missing"),
    ],
)
def test_wrong_options(tmp_path, options, message):
    write_instances(tmp_path / "coco", draw_images(8))
    with pytest.raises(DataError, match=message.split(";")[0]):
        build(tmp_path / "coco", tmp_path / "cache", **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("77\n", r"few\.txt: no image of the list .*'77'"),
        ("1\nmany words\n", r"few\.txt, line 2"),
        ("\n", r"few\.txt"),
    ],
)
def test_a_wrong_list_of_images_is_named(tmp_path, text, message):
    write_instances(tmp_path / "coco", draw_images(8))
    (tmp_path / "coco" / "few.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        build(tmp_path / "coco", tmp_path / "cache", image_list="few.txt")


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            {"id": 2, "file_name": "b/a.jpg", "width": 9, "height": 9},
            "images, element 2: two images have the same id: found 'a'",
        ),
        (
            {"id": 1, "file_name": "b.jpg", "width": 9, "height": 9},
            "images, element 2: the image occurs twice: found 1",
        ),
    ],
)
def test_images_with_one_id_are_refused(tmp_path, second, message):
    size = {"width": 9, "height": 9}
    write_instances(tmp_path / "coco", [], images=[{"id": 1, "file_name": "a.jpg", **size}, {**second, **size}])
    with pytest.raises(DataError, match=message):
        build(tmp_path / "coco", tmp_path / "cache", image_id_format="file_stem")


@pytest.mark.parametrize("kind", ["image", "category"])
def test_an_unknown_id_is_named(tmp_path, kind):
    object_of = {"id": 1, "image_id": 0, "category_id": 1, "bbox": [0, 0, 1, 1], f"{kind}_id": 99}
    write_instances(tmp_path / "coco", draw_images(3), annotations=[object_of])
    with pytest.raises(DataError, match=f"annotation 1: the object .* {kind}.*99"):
        build(tmp_path / "coco", tmp_path / "cache")

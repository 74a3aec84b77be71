# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""POPE's questions from COCO's instances: the three samplings against loops over a handful of images."""

import json
from collections import Counter

import numpy as np
import pytest

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.builders.pope import ObjectCounts, choose_objects, object_question
from grounded_attention.dataset_scripts.files.errors import DataError
from tests.helpers.built import built
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
        (shown, random), (popular_shown, popular), (adversarial_shown, adversarial) = found.values()
        assert shown == popular_shown == adversarial_shown
        assert set(shown) <= present
        assert len(shown) == size
        assert len(set(random)) == size
        assert set(random) <= set(absent)
        images_with = Counter()
        together = Counter()
        for other in images:
            images_with.update(other)
            for name in other:
                together[name] += len(present & other)
        assert popular == sorted(absent, key=lambda name: (-images_with[name], name))[:size]
        assert adversarial == sorted(absent, key=lambda name: (-together[name], name))[:size]


def test_the_words_of_a_question():
    assert object_question("dog") == "Is there a dog in the image?"
    assert object_question("umbrella") == "Is there an umbrella in the image?"


def write_instances(folder, drawn, /, **changes):
    images = []
    annotations = []
    for number, present in enumerate(drawn):
        images.append({"id": number, "file_name": f"COCO_val2014_{number}.jpg", "width": 9, "height": 9})
        for name in [*sorted(present), min(present)]:  # two objects of one kind count once
            annotation = {"id": len(annotations), "image_id": number, "category_id": NAMES.index(name)}
            annotations.append({**annotation, "bbox": [0, 0, 1, 1]})
    categories = [{"id": number, "name": name} for number, name in enumerate(NAMES)]
    content = {"images": images, "annotations": annotations, "categories": categories, **changes}
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    (folder / "annotations" / "instances_val2014.json").write_text(json.dumps(content))


def build(folder, cache, **options):
    builder = built(BUILDERS["pope"], folder, cache, **options)
    return builder.as_dataset("test")


def test_rows(tmp_path):
    images = draw_images()
    write_instances(tmp_path / "coco", images)
    rows = build(tmp_path / "coco", tmp_path / "cache", images=12)
    assert len(set(rows["image_id"])) == 12
    for row in rows:
        present = images[int(row["image_id"])]
        assert len(present) >= 3
        named = row["example_id"].split(":")[-1]
        assert row["answers"] == ["yes" if named in present else "no"]
        assert row["text"] == object_question(named)
        assert row["file_name"] == f"COCO_val2014_{row['image_id']}.jpg"
    for sampling in ("random", "popular", "adversarial"):
        answers = [row["answers"][0] for row in rows if row["sampling"] == sampling]
        assert answers.count("yes") == answers.count("no") > 20
    again = build(tmp_path / "coco", tmp_path / "again", images=12)
    assert again.to_list() == rows.to_list()


def test_listed_images_alone_are_asked_about(tmp_path):
    write_instances(tmp_path / "coco", draw_images())
    (tmp_path / "coco" / "few.txt").write_text("3\n7\n11\n20\n21\n")
    rows = build(tmp_path / "coco", tmp_path / "cache", image_list="few.txt", image_id_format="number")
    assert set(rows["image_id"]) <= {"3", "7", "11", "20", "21"}


def test_scenes(tmp_path):
    scenes = tiny_scenes(tmp_path / "scenes")
    rows = build(scenes / "refcoco+", tmp_path / "cache", instances="instances.json", least_objects=2)
    asked = {key.split(":")[-1] for key in rows["example_id"]}
    assert asked <= set("ball cube cone cylinder star cross ring heart".split())
    assert all((scenes / "flickr30k-images" / name).is_file() for name in rows["file_name"])


@pytest.mark.parametrize(
    "options, message",
    {
        '{"questions": 3}': "bad option questions",
        '{"images": 0}': "bad option images",
        '{"seed": -1}': "bad option seed: found -1, expected greater than or equal to 0",
        '{"seed": 4294967296}': "bad option seed: found 4294967296",
        '{"least_objects": 8}': "no image has 8 different objects",
        '{"instances": "none.json"}': "the file is missing",
    }.items(),
)
def test_wrong_options(tmp_path, options, message):
    write_instances(tmp_path / "coco", draw_images(8))
    with pytest.raises(DataError, match=message):
        build(tmp_path / "coco", tmp_path / "cache", **json.loads(options))


@pytest.mark.parametrize(
    "text, message",
    {
        "77\n": r"few\.txt: no image of the list .*'77'",
        "1\nmany words\n": r"few\.txt, line 2",
        "\n": r"few\.txt",
    }.items(),
)
def test_a_wrong_list_of_images_is_named(tmp_path, text, message):
    write_instances(tmp_path / "coco", draw_images(8))
    (tmp_path / "coco" / "few.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        build(tmp_path / "coco", tmp_path / "cache", image_list="few.txt")


@pytest.mark.parametrize(
    "number, name, message",
    [
        (2, "b/a.jpg", "images, element 2: two images have the same id: found 'a'"),
        (1, "b.jpg", "images, element 2: the image occurs twice: found 1"),
    ],
)
def test_images_with_one_id_are_refused(tmp_path, number, name, message):
    image = {"id": 1, "file_name": "a.jpg", "width": 9, "height": 9}
    write_instances(tmp_path / "coco", [], images=[image, {**image, "id": number, "file_name": name}])
    with pytest.raises(DataError, match=message):
        build(tmp_path / "coco", tmp_path / "cache", image_id_format="file_stem")


@pytest.mark.parametrize("kind", ["image", "category"])
def test_an_unknown_id_is_named(tmp_path, kind):
    object_of = {"id": 1, "image_id": 0, "category_id": 1, "bbox": [0, 0, 1, 1], f"{kind}_id": 99}
    write_instances(tmp_path / "coco", draw_images(3), annotations=[object_of])
    with pytest.raises(DataError, match=f"annotation 1: the object .* {kind}.*99"):
        build(tmp_path / "coco", tmp_path / "cache")

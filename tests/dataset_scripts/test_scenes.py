# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The files of the scenes, read back by the builders of the real data."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from defusedxml.ElementTree import parse
from PIL import Image

from grounded_attention.commands.draw_scenes import main
from grounded_attention.dataset_scripts.builders.flickr30k_entities import Flickr30kEntities, parse_annotation
from grounded_attention.dataset_scripts.builders.vgp import VGP
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.dataset_scripts.scenes import shapes
from grounded_attention.dataset_scripts.scenes.captions import caption_holds
from grounded_attention.dataset_scripts.scenes.dataset import scene_record, write_scenes
from grounded_attention.dataset_scripts.scenes.features import pixel_features
from grounded_attention.dataset_scripts.scenes.language import meaning_of, relation_between
from grounded_attention.dataset_scripts.scenes.writers import annotation
from tests.dataset_scripts.scene_numbers import scene_numbers

IMAGES = 60
SEED = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("scenes")
    write_scenes(root, IMAGES, SEED)
    return root


@pytest.fixture(scope="module")
def rows(folder, tmp_path_factory):
    builder = Flickr30kEntities(data_dir=str(folder), cache_dir=str(tmp_path_factory.mktemp("cache")))
    builder.download_and_prepare()
    return {split: list(data) for split, data in builder.as_dataset().items()}


@pytest.fixture(scope="module")
def vgp(folder, tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("cache"))
    builder = VGP(data_dir=str(folder), cache_dir=cache, regions=str(folder / "regions"))
    builder.download_and_prepare()
    return builder


def files_of(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def records_by_id():
    records = (scene_record(SEED, number, IMAGES) for number in range(IMAGES))
    return {record.image_id: record for record in records}


def test_same_seed_same_bytes_with_any_number_of_processes(tmp_path):
    write_scenes(tmp_path / "one", 6, 11)
    write_scenes(tmp_path / "two", 6, 11, num_proc=2)
    write_scenes(tmp_path / "other", 6, 12)
    one, two, other = (files_of(tmp_path / name) for name in ("one", "two", "other"))
    assert one == two
    assert set(one) == set(other)
    assert all(one[name] != other[name] for name in one if name.endswith(("jpg", "csv", "xml", "regions-00000.arrow")))


def test_entities_have_the_boxes_of_the_description(rows):
    records = records_by_id()
    several = 0
    for row in (row for data in rows.values() for row in data):
        record = records[row["image_id"]]
        size = np.array([row["width"], row["height"]] * 2)
        own = [phrase for phrase in row["phrases"] if row["related"][phrase["sentence"]]]
        boxes = {phrase["entity"]: np.array(phrase["boxes"]).reshape(-1, 4) * size for phrase in own}
        for entity, chain in record.chains().items():
            expected = [shapes.box(record.scene.objects[number]) for number in sorted(entity.members)]
            assert len(boxes[str(chain)]) == len(expected)
            several += len(expected) > 1
            np.testing.assert_allclose(boxes[str(chain)], np.reshape(expected, (-1, 4)), atol=2.01)
        assert len(boxes.keys() - {"0"}) == len(record.chains())
    assert several > 5
    assert [len({row["image_id"] for row in data}) for data in rows.values()] == [48, 6, 6]


@pytest.mark.parametrize("corner", [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_objects_that_reach_beyond_the_image_have_boxes_inside(tmp_path, corner):
    record = scene_record(SEED, 3, IMAGES)
    scene = record.scene
    x = corner[0] * scene.width
    y = corner[1] * scene.height
    moved = replace(scene, objects=tuple(replace(item, x=x, y=y, tilt=-10.0) for item in scene.objects))
    path = tmp_path / "1.xml"
    path.write_text(annotation(replace(record, scene=moved)))
    width, height, chains = parse_annotation(path)
    boxes = np.array([box for of_chain in chains.values() for box in of_chain])
    assert (width, height) == (scene.width, scene.height)
    assert len(boxes)
    assert ((boxes >= 0) & (boxes <= 1)).all()
    assert (boxes[:, :2] < boxes[:, 2:]).all()


def test_entities_without_boxes_and_objects_with_several_names(rows, folder):
    paths = [*(folder / "flickr30k_entities" / "Annotations").iterdir()]
    annotations = [*map(parse, paths)]
    flags = {
        (item.findtext("scene"), item.findtext("nobndbox"), item.find("bndbox") is None)
        for annotation in annotations
        for item in annotation.iter("object")
    }
    assert {("1", "1", True), ("0", "1", True)} < flags
    names = [len(item.findall("name")) for annotation in annotations for item in annotation.iter("object")]
    assert max(names) > 1
    tags = [tag for data in rows.values() for row in data for tag in row["phrases"]]
    assert any(tag["entity"] == "0" and tag["types"] == ["notvisual"] for tag in tags)
    assert {len(tag["types"]) for tag in tags} == {1, 2}


def test_captions_read_back_as_written(rows):
    records = records_by_id()
    for row in (row for data in rows.values() for row in data):
        record = records[row["image_id"]]
        assert [text.lower() for text in row["captions"]] == [f"{c.text} ." for c in record.captions]
        assert all(text[0].isupper() for text in row["captions"])
        for tag in row["phrases"]:
            assert row["captions"][tag["sentence"]][tag["start"] : tag["end"]] == tag["text"]


def test_unrelated_captions_are_listed_and_false(rows, folder):
    listed = (folder / "flickr30k_entities" / "UNRELATED_CAPTIONS").read_text()
    assert listed.startswith("#")
    assert not listed.endswith("\n")
    records = [record for record in records_by_id().values() if record.unrelated is not None]
    assert records
    assert len(listed.split("\n")) == 1 + len(records)
    by_id = {row["image_id"]: row for data in rows.values() for row in data}
    for record in records:
        assert by_id[record.image_id]["related"] == [index != record.unrelated for index in range(5)]
        assert not caption_holds(record.scene, record.captions[record.unrelated])


def test_pair_files_hold_one_label_a_pair_and_no_trivial_pair(folder):
    for path in (folder / "vgp").iterdir():
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        pairs = {(row["image"], frozenset((row["original_phrase1"], row["original_phrase2"]))) for row in rows}
        assert len(pairs) == len(rows) > 50
        assert all(row["phrase1"] != row["phrase2"] for row in rows)
        names = ("Alternation", "Entailment1", "Entailment2", "Equivalence", "Independence")
        assert all(names.index(row["original_label"]) == int(row["type_label"]) for row in rows)


def test_vgp_builder_joins_every_row_with_labels_by_meaning(vgp):
    assert all(part["rows_joined"] == part["rows"] for part in vgp.report.values())
    labels = set()
    for row in (row for data in vgp.as_dataset().values() for row in data):
        for pair in row["phrase_pairs"]:
            first, second = (row["phrases"][pair[name]] for name in ("phrase1", "phrase2"))
            assert first["entity"] == second["entity"]
            assert relation_between(meaning_of(first["text"]), meaning_of(second["text"])) == pair["label"]
            labels.add(pair["label"])
    assert labels == {0, 1, 2, 3, 4}


def test_regions_are_those_of_the_stored_image(folder):
    table = RegionTable.open(folder / "regions")
    table.verify()
    assert len(table) == IMAGES
    regions = table[table.ids[3]]
    image = Image.open(folder / "flickr30k-images" / f"{regions.image_id}.jpg")
    assert image.size == (regions.width, regions.height)
    boxes = regions.boxes * np.array([*image.size, *image.size], dtype=np.float32)
    # Boxes went through a division, so a value may fall on the other side of a rounding.
    again = pixel_features(image, boxes).astype(np.float32)
    assert np.abs(again - regions.features.astype(np.float32)).mean() < 1e-3


def test_scenes_are_as_hard_as_they_should_be(folder):
    figures = scene_numbers(folder)
    assert figures["chance of a grounded phrase"] <= 0.15
    assert 0.12 <= figures["grounded phrases that need their sentence"] <= 0.28
    assert figures["captions false of the nearest image"] >= 0.96
    assert figures["chains in two captions or more"] >= 0.85
    assert min(value for name, value in figures.items() if name.startswith("pairs: ")) >= 0.08
    assert figures["linear classifier: colour"] > 0.85
    assert figures["linear classifier: shape"] > 0.75


def test_finished_scenes_stay_and_incomplete_ones_are_replaced(tmp_path):
    manifest = write_scenes(tmp_path, 5, 0)
    before = files_of(tmp_path)
    picture = next((tmp_path / "flickr30k-images").iterdir())
    picture.write_bytes(b"")
    assert write_scenes(tmp_path, 5, 0) == manifest
    assert picture.read_bytes() == b""
    (tmp_path / "scenes.json").rename(tmp_path / "scenes.partial.json")
    write_scenes(tmp_path, 5, 0)
    assert files_of(tmp_path) == before


def test_other_scenes_are_replaced_by_force_only_and_other_files_never(tmp_path):
    write_scenes(tmp_path / "scenes", 5, 0)
    with pytest.raises(DataError, match=r"'seed': 0.*'seed': 1.*--force"):
        write_scenes(tmp_path / "scenes", 5, 1)
    write_scenes(tmp_path / "scenes", 5, 1, force=True)
    assert json.loads((tmp_path / "scenes" / "scenes.json").read_text())["seed"] == 1
    real = tmp_path / "real" / "flickr30k_entities"
    real.mkdir(parents=True)
    with pytest.raises(DataError, match="other files"):
        write_scenes(tmp_path / "real", 5, 0, force=True)
    assert real.is_dir()


def test_command_line(tmp_path, capsys):
    assert main(["--output", str(tmp_path / "new"), "--images", "5", "--seed", "1"]) == 0
    capsys.readouterr()
    assert json.loads((tmp_path / "new" / "scenes.json").read_text())["seed"] == 1
    assert main(["--output", str(tmp_path), "--images", "2", "--seed", "0"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: images is too small: found 2, expected at least 5")
    assert error.count("\n") == 1

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
from grounded_attention.dataset_scripts.builders.coco_captions import CocoCaptions
from grounded_attention.dataset_scripts.builders.flickr30k_entities import Flickr30kEntities, parse_annotation
from grounded_attention.dataset_scripts.builders.text_corpus import TextCorpus
from grounded_attention.dataset_scripts.builders.vgp import VGP
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.dataset_scripts.scenes import shapes
from grounded_attention.dataset_scripts.scenes.captions import caption_holds
from grounded_attention.dataset_scripts.scenes.dataset import IMAGES_PER_DOCUMENT, scene_record, write_scenes
from grounded_attention.dataset_scripts.scenes.features import pixel_features
from grounded_attention.dataset_scripts.scenes.language import meaning_of, relation_between
from grounded_attention.dataset_scripts.scenes.records import split_numbers, write_once
from grounded_attention.dataset_scripts.scenes.writers import annotation
from tests.dataset_scripts import scene_numbers
from tests.helpers.built import built

IMAGES = 60
SEED = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("scenes")
    write_scenes(root, IMAGES, SEED)
    return root


@pytest.fixture(scope="module")
def build(folder, tmp_path_factory):
    """Builds a data set of the folder, or of a file in it; gives the builder and all rows by split."""

    def build(builder_class, file="", **options):
        cache = str(tmp_path_factory.mktemp("cache"))
        builder = built(builder_class, folder / file, cache, **options)
        return builder, {split: list(data) for split, data in builder.as_dataset().items()}

    return build


@pytest.fixture(scope="module")
def splits(build):
    return build(Flickr30kEntities)[1]


@pytest.fixture(scope="module")
def rows(splits):
    return [row for data in splits.values() for row in data]


@pytest.fixture(scope="module")
def records():
    return [scene_record(SEED, number, IMAGES) for number in range(IMAGES)]


@pytest.fixture(scope="module")
def by_id(records):
    return {record.image_id: record for record in records}


@pytest.fixture(scope="module")
def annotated(folder):
    """The objects of the files of annotations."""
    paths = (folder / "flickr30k_entities" / "Annotations").iterdir()
    return [item for path in paths for item in parse(path).iter("object")]


def files_of(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_same_seed_same_bytes_with_any_number_of_processes(tmp_path):
    write_scenes(tmp_path / "one", 6, 11)
    write_scenes(tmp_path / "two", 6, 11, num_proc=2)
    write_scenes(tmp_path / "other", 6, 12)
    one = files_of(tmp_path / "one")
    other = files_of(tmp_path / "other")
    assert one == files_of(tmp_path / "two")
    assert set(one) == set(other)
    for name in one:
        if name.endswith(("jpg", "csv", "xml", "regions-00000.arrow")):
            assert one[name] != other[name]


def test_entities_have_the_boxes_of_the_description(rows, by_id):
    several = 0
    for row in rows:
        record = by_id[row["image_id"]]
        size = [row["width"], row["height"]] * 2
        boxes = {phrase["entity"]: phrase["boxes"] for phrase in row["phrases"] if row["related"][phrase["sentence"]]}
        for entity, number in record.chains().items():
            found = np.reshape(boxes[str(number)], (-1, 4)) * size
            expected = [shapes.box(record.scene.objects[member]) for member in sorted(entity.members)]
            np.testing.assert_allclose(found, np.reshape(expected, (-1, 4)), atol=2.01)
            several += len(expected) > 1
        assert len(boxes.keys() - {"0"}) == len(record.chains())
    assert several > 5


@pytest.mark.parametrize("x, y", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_objects_that_reach_beyond_the_image_have_boxes_inside(tmp_path, records, x, y):
    scene = records[3].scene
    corner = {"x": x * scene.width, "y": y * scene.height, "tilt": -10.0}
    moved = replace(scene, objects=tuple(replace(item, **corner) for item in scene.objects))
    path = tmp_path / "1.xml"
    path.write_text(annotation(replace(records[3], scene=moved)))
    width, height, chains = parse_annotation(path)
    assert (width, height) == (scene.width, scene.height)
    assert any(chains.values())
    # From 1, last pixel included; the builder would clip one pixel more.
    for corners in parse(path).iter("bndbox"):
        x1, y1, x2, y2 = (int(corners.findtext(side)) for side in ("xmin", "ymin", "xmax", "ymax"))
        assert 1 <= x1 < x2 <= width
        assert 1 <= y1 < y2 <= height


def test_a_tenth_of_the_images_is_for_validation_and_for_test(splits):
    assert [len({row["image_id"] for row in data}) for data in splits.values()] == [48, 6, 6]


def test_entities_without_boxes(annotated, rows):
    flags = {(item.findtext("scene"), item.findtext("nobndbox"), item.find("bndbox") is None) for item in annotated}
    assert {("1", "1", True), ("0", "1", True)} < flags
    phrases = [phrase for row in rows for phrase in row["phrases"]]
    assert any(phrase["entity"] == "0" and phrase["types"] == ["notvisual"] for phrase in phrases)
    assert {len(phrase["types"]) for phrase in phrases} == {1, 2}


def test_objects_may_have_several_names(annotated):
    assert max(len(item.findall("name")) for item in annotated) > 1


def test_captions_read_back_as_written(rows, by_id):
    for row in rows:
        captions = by_id[row["image_id"]].captions
        assert row["captions"] == [caption.written()[0] for caption in captions]
        assert [text.lower() for text in row["captions"]] == [f"{caption.text} ." for caption in captions]
        for phrase in row["phrases"]:
            text = row["captions"][phrase["sentence"]]
            assert text[phrase["start"] : phrase["end"]] == phrase["text"]


def test_unrelated_captions_are_listed_and_false(rows, records, folder):
    listed = (folder / "flickr30k_entities" / "UNRELATED_CAPTIONS").read_text()
    assert listed.startswith("#")
    assert not listed.endswith("\n")
    strangers = {record.image_id: record for record in records if record.unrelated is not None}
    assert strangers
    assert len(listed.split("\n")) == 1 + len(strangers)
    for row in rows:
        if record := strangers.get(row["image_id"]):
            assert row["related"] == [index != record.unrelated for index in range(5)]
            assert not caption_holds(record.scene, record.captions[record.unrelated])


LABELS = ("Alternation", "Entailment1", "Entailment2", "Equivalence", "Independence")


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_pair_files_hold_one_label_a_pair_and_no_trivial_pair(folder, split):
    with (folder / "vgp" / f"{split}_data.csv").open(newline="") as file:
        pairs = list(csv.DictReader(file))
    different = {(row["image"], frozenset((row["original_phrase1"], row["original_phrase2"]))) for row in pairs}
    assert len(different) == len(pairs) > 50
    for row in pairs:
        assert row["phrase1"] != row["phrase2"]
        assert LABELS.index(row["original_label"]) == int(row["type_label"])


def test_vgp_builder_joins_every_row_with_labels_by_meaning(build, folder):
    vgp, splits = build(VGP, regions=str(folder / "regions"))
    for part in vgp.report.values():
        assert part["rows_joined"] == part["rows"]
    labels = set()
    for row in (row for data in splits.values() for row in data):
        for pair in row["phrase_pairs"]:
            first = row["phrases"][pair["phrase1"]]
            second = row["phrases"][pair["phrase2"]]
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


def test_scenes_are_as_hard_as_they_should_be(folder, records):
    table = RegionTable.open(folder / "regions")
    shares = scene_numbers.shares_of_pairs(records)
    assert len(shares) == 5
    assert min(shares) >= 0.08
    assert scene_numbers.chance_of_a_grounded_phrase(records, table) <= 0.15
    assert 0.12 <= scene_numbers.share_that_needs_its_sentence(records) <= 0.28
    assert scene_numbers.share_of_false_captions(records, table, split_numbers(SEED, IMAGES)) >= 0.96
    assert scene_numbers.share_of_chains_in_several_captions(records) >= 0.85
    colour, shape = scene_numbers.linear_accuracies(records, table)
    assert colour > 0.85
    assert shape > 0.75


@pytest.mark.parametrize(
    "config, names",
    [("official", {"train", "validation"}), ("karpathy", {"train", "validation", "test"})],
)
def test_coco_has_the_related_captions_of_the_same_images(build, folder, splits, config, names):
    coco = build(CocoCaptions, config_name=config)[1]
    assert set(coco) == names
    ids = []
    for split, data in coco.items():
        own = {row["image_id"]: np.array(row["captions"])[row["related"]].tolist() for row in splits[split]}
        assert {row["image_id"]: row["captions"] for row in data} == own
        for row in data:
            assert (folder / "flickr30k-images" / row["file_name"]).is_file()
            ids += row["caption_ids"]
    assert len(set(ids)) == len(ids)


def test_ids_and_sizes_of_coco_are_those_of_the_regions(build, folder):
    table = RegionTable.open(folder / "regions")
    for row in build(CocoCaptions, image_id_format="file_stem")[1]["train"]:
        regions = table[row["image_id"]]
        assert row["file_name"] == f"{row['image_id']}.jpg"
        assert (row["width"], row["height"]) == (regions.width, regions.height)


def test_corpus_is_in_the_language_of_the_captions_and_about_other_scenes(folder, build, rows):
    sentences = [row["text"] for row in build(TextCorpus, "corpus.txt")[1]["train"]]
    documents = -(-IMAGES // IMAGES_PER_DOCUMENT)
    assert len(sentences) == 5 * documents
    words = " ".join(sentences).lower().split()
    assert set(words) <= set((folder / "vocab.txt").read_text().split("\n"))
    captions = {caption for row in rows for caption in row["captions"]}
    assert len(captions & set(sentences)) <= 1, "the corpus repeats captions"
    for sentence in sentences:
        assert sentence[0].isupper()
        assert sentence.endswith(" .")
    assert (folder / "corpus.txt").read_text().count("\n\n") == documents - 1, "a blank line between two scenes"


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


def test_a_link_in_the_folder_of_scenes_is_refused(tmp_path):
    root = tmp_path / "scenes"
    precious = tmp_path / "precious"
    write_once(root, {"seed": 1}, False, dict)
    precious.mkdir()
    (precious / "thesis.tex").write_text("years of work")
    (root / "vqa").symlink_to(precious)
    with pytest.raises(ValueError, match=f"{root / 'vqa'}: a symbolic link to {precious}"):
        write_once(root, {"seed": 2}, True, dict)
    assert (precious / "thesis.tex").read_text() == "years of work"

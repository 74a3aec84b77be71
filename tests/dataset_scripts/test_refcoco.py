# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""RefCOCO's builder on files in the official containers."""

import json
import pickle

import pytest

from grounded_attention.dataset_scripts.builders.refcoco import RefCOCO
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from tests.helpers.built import built

INSTANCES = """{"images": [
    {"id": 9, "file_name": "COCO_train2014_000000000009.jpg", "width": 200, "height": 100},
    {"id": 30, "file_name": "COCO_train2014_000000000030.jpg", "width": 50, "height": 80}],
    "annotations": [
    {"id": 500, "image_id": 9, "bbox": [20.0, 10.0, 100.0, 50.0], "category_id": 1},
    {"id": 501, "image_id": 9, "bbox": [150.0, 60.0, 60.0, 30.0], "category_id": 1},
    {"id": 502, "image_id": 30, "bbox": [0, 0, 50, 80], "category_id": 2}], "categories": []}"""
REFERENCES = """[
    {"ref_id": 1, "ann_id": 500, "image_id": 9, "split": "train", "category_id": 1, "file_name": "COCO_9_1.jpg",
    "sentences": [{"sent_id": 10, "tokens": ["the", "big", "dog"], "sent": "the big dog", "raw": "THE BIG DOG"},
    {"sent_id": 11, "tokens": ["brown", "one"], "sent": "brown one", "raw": "BROWN ONE"}]},
    {"ref_id": 2, "ann_id": 501, "image_id": 9, "split": "val", "category_id": 1, "file_name": "COCO_9_2.jpg",
    "sentences": [{"sent_id": 20, "tokens": ["half", "a", "cat"], "sent": "half a cat", "raw": "HALF A CAT"}]},
    {"ref_id": 3, "ann_id": 502, "image_id": 30, "split": "testA", "category_id": 1, "file_name": "COCO_30_3.jpg",
    "sentences": [{"sent_id": 30, "tokens": ["woman"], "sent": "woman", "raw": "WOMAN"}]},
    {"ref_id": 4, "ann_id": 502, "image_id": 30, "split": "testB", "category_id": 1, "file_name": "COCO_30_4.jpg",
    "sentences": [{"sent_id": 40, "tokens": ["not", "a", "dog"], "sent": "not a dog", "raw": "NOT A DOG"}]}]"""


def write(folder, references=REFERENCES, name="refs(unc).p", instances=INSTANCES):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "instances.json").write_text(instances)
    if name.endswith(".p"):
        (folder / name).write_bytes(pickle.dumps(json.loads(references), protocol=2))
    else:
        (folder / name).write_text(references)
    return folder


def build(data_dir, tmp_path, **options):
    return built(RefCOCO, data_dir, tmp_path / "cache", **options)


@pytest.mark.parametrize("name", ["refs(unc).p", "refs(unc).json"])
def test_every_sentence_is_a_row_of_its_split(tmp_path, name):
    builder = build(write(tmp_path / "refcoco+", name=name), tmp_path)
    splits = builder.as_dataset()
    assert list(splits) == ["train", "validation", "testA", "testB"]
    assert splits["train"]["text"][:] == ["the big dog", "brown one"]
    assert splits["validation"]["text"][:] == ["half a cat"]
    assert splits["testA"]["text"][:] == ["woman"]
    assert splits["testB"]["text"][:] == ["not a dog"]
    assert splits["train"]["example_id"][:] == ["10", "11"]
    assert splits["train"]["image_id"][:] == ["9", "9"]


def test_boxes_are_corners_within_the_image(tmp_path):
    builder = build(write(tmp_path / "data"), tmp_path)
    [phrase] = builder.as_dataset("train")[0]["phrases"]
    assert phrase["boxes"] == [pytest.approx([0.1, 0.1, 0.6, 0.6])]
    [phrase] = builder.as_dataset("validation")[0]["phrases"]
    assert phrase["boxes"] == [pytest.approx([0.75, 0.6, 1.0, 0.9])]
    assert builder.report["validation"]["boxes_clipped"] == 1
    assert "boxes_clipped" not in builder.report["train"]


def test_image_ids_can_be_file_stems_that_differ(tmp_path):
    builder = build(write(tmp_path / "data"), tmp_path, image_id_format="file_stem", splits="testA")
    assert builder.as_dataset("testA")["image_id"][:] == ["COCO_train2014_000000000030"]
    same_stem = INSTANCES.replace("COCO_train2014_000000000030", "other/COCO_train2014_000000000009")
    folder = write(tmp_path / "data", instances=same_stem)
    with pytest.raises(DataError, match=r"element 2: two images have the same id: found 'COCO_train2014_0+9'"):
        build(folder, tmp_path, image_id_format="file_stem")
    assert build(folder, tmp_path).as_dataset("testA")["image_id"][:] == ["30"]


WRONG_BOXES = {
    "[500, 500, 20, 20]": "annotation 500: no part of the box is in its image: found .*200 x 100",
    "[-30, 5, 20, 20]": "annotation 500: no part of the box is in its image",
    "[200, 5, 20, 20]": "annotation 500: no part of the box is in its image",
    "[5, 5, 0, 20]": "annotation 500: no part of the box is in its image",
    "[0.5, 0.25, 0.5, 0.5]": "annotation 500: .*normalised",
    "[1, 2]": r"annotations, element 1: bad bbox: found \[1, 2\], expected x, y, width, height",
    "[true, true, true, true]": r"annotations, element 1: bad bbox: found \[True, True, True, True\]",
    f"[{10**400}, 1, 5, 5]": r"annotations, element 1: bad bbox: found \[10000",
    "[50, 50, -20, -20]": "annotations, element 1: the box has a negative size",
}


@pytest.mark.parametrize("box, message", WRONG_BOXES.items())
def test_a_wrong_box_is_named(tmp_path, box, message):
    instances = INSTANCES.replace("[20.0, 10.0, 100.0, 50.0]", box)
    with pytest.raises(DataError, match=message):
        build(write(tmp_path / "data", instances=instances), tmp_path)


def test_refcocog_has_one_test_split(tmp_path):
    references = REFERENCES.replace("testA", "test").replace("testB", "test")
    builder = build(write(tmp_path / "refcocog", references, "refs(umd).p"), tmp_path, config_name="refcocog")
    assert set(builder.as_dataset()) == {"train", "validation", "test"}
    with pytest.raises(DataError, match="has no such split: found 'testA', expected train or validation or test"):
        build(tmp_path / "refcocog", tmp_path, config_name="refcocog", splits="testA")


@pytest.mark.parametrize(
    "field, replacement, message",
    [
        ('"ann_id": 500', '"ann_id": 7', "reference 1: the annotation of its object is missing: found"),
        ('500, "image_id": 9', '500, "image_id": 30', "reference 1: its object is in another image"),
        ('"sent_id": 20', '"sent_id": 10', "reference 2: the sentence occurs twice"),
        ('["half", "a", "cat"]', '["", " "]', "reference 2, sentence 1: bad tokens"),
        ('"split": "testA"', '"part": "testA"', "reference 3: split is missing"),
        (REFERENCES, '{"refs": []}', "not a list of references: found 'dict'"),
    ],
)
def test_a_wrong_reference_is_named(tmp_path, field, replacement, message):
    references = REFERENCES.replace(field, replacement)
    with pytest.raises(DataError, match=message):
        build(write(tmp_path / "data", references), tmp_path)


@pytest.mark.parametrize(
    "field, replacement, message",
    [
        ('"id": 501', '"id": 500', "annotations, element 2: the id occurs twice: found 500"),
        ('500, "image_id": 9', '500, "image_id": 5', "annotation 500: "),
    ],
)
def test_a_wrong_object_is_named(tmp_path, field, replacement, message):
    instances = INSTANCES.replace(field, replacement)
    with pytest.raises(DataError, match=message):
        build(write(tmp_path / "data", instances=instances), tmp_path)


def test_missing_files_and_options_are_named(tmp_path):
    folder = write(tmp_path / "data")
    with pytest.raises(MissingFileError, match=r"refs\(unc\)\.json: the file is missing.*refs\(unc\)\.p"):
        build(tmp_path / "nowhere", tmp_path)
    with pytest.raises(DataError, match="split_by of refcoco\\+: found 'google', expected unc"):
        build(folder, tmp_path, split_by="google")
    (folder / "instances.json").unlink()
    with pytest.raises(MissingFileError, match=r"instances\.json: the file is missing"):
        build(folder, tmp_path)


def test_the_documented_record_reads_right(shared, tmp_path):
    folder = shared / "real" / "refcoco" / "documented_records"
    rows = build(folder, tmp_path, config_name="refcoco", splits="train").as_dataset("train")
    assert rows["text"][:] == ["the lady with the blue shirt", "lady with back to us", "blue shirt"]
    instances = json.loads((folder / "refcoco" / "instances.json").read_text())
    x, y, width, height = instances["annotations"][1]["bbox"]
    expected = [x / 427, y / 640, (x + width) / 427, (y + height) / 640]
    assert rows[0]["phrases"][0]["boxes"][0] == pytest.approx(expected)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes that RefCOCO and VCR bring, as `grounded-attention regions extract --boxes` takes them."""

import json
from pathlib import Path

import pytest
from numpy.testing import assert_allclose

from grounded_attention.commands.extract_regions import main
from grounded_attention.dataset_scripts.builders.candidate_boxes import refcoco_candidates, vcr_objects
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.dataset_scripts.scenes.dataset import write_scenes
from grounded_attention.dataset_scripts.scenes.writers_refcoco import DETECTIONS_FILE
from tests.helpers.vcr_files import question, write_image
from tests.helpers.vcr_files import write as write_questions

# Records of instances.json and of a file of detections.
NAME = "COCO_train2014_000000000009"
IMAGE_9 = '{"id": 9, "file_name": "COCO_train2014_000000000009.jpg", "width": 200, "height": 100}'
IMAGE_30 = '{"id": 30, "file_name": "COCO_train2014_000000000030.jpg", "width": 50, "height": 80}'
IMAGE_31 = '{"id": 31, "file_name": "COCO_train2014_000000000031.jpg", "width": 60, "height": 60}'
IMAGES = (IMAGE_9, IMAGE_30, IMAGE_31)
OBJECT = '{"id": 502, "image_id": 30, "bbox": [0, 0, 50, 80], "category_id": 2}'
OBJECTS_OF_9 = (
    '{"id": 500, "image_id": 9, "bbox": [20.0, 10.0, 100.0, 50.0], "category_id": 1}',
    '{"id": 501, "image_id": 9, "bbox": [150.0, 60.0, 60.5, 30.0], "category_id": 1, "iscrowd": 1}',
)
DETECTION = '{"image_id": 30, "box": [1.5, 2.0, 10.0, 20.0], "score": 0.4, "det_id": 1, "category_id": 1}'
UNKNOWN = '{"image_id": 777, "box": [5, 5, 5, 5], "score": 0.9, "det_id": 5, "category_id": 1}'
DETECTIONS = (
    DETECTION,
    '{"image_id": 9, "box": [0, 0, 10, 10], "score": 0.2, "det_id": 2, "category_id": 1}',
    '{"image_id": 30, "box": [5, 5, 5, 5], "score": 0.9, "det_id": 3, "category_id": 1}',
    '{"image_id": 30, "box": [6, 5, 5, 5], "score": 0.9, "det_id": 4, "category_id": 1}',
    UNKNOWN,
)


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "data")


def listed(records):
    return f"[{', '.join(records)}]"


def write(folder, images=IMAGES, objects=(OBJECT, *OBJECTS_OF_9)):
    folder.mkdir(exist_ok=True)
    content = f'{{"images": {listed(images)}, "annotations": {listed(objects)}, "categories": []}}'
    (folder / "instances.json").write_text(content)
    return folder


def find(data, detections=None, **options):
    if detections is not None:
        (data / "dets.json").write_text(detections)
        options["detections"] = data / "dets.json"
    return refcoco_candidates("refcoco+", data, data / "pictures", **options)


def test_annotated_objects_are_clipped_and_in_the_order_of_images(data):
    found = find(data)
    expected = """{"9": {"boxes": [[20, 10, 120, 60], [150, 60, 200, 90]], "scores": [1, 1]},
        "30": {"boxes": [[0, 0, 50, 80]], "scores": [1]}}"""
    assert found.records == json.loads(expected)
    assert [*found.counts().values()] == [3, 1, ["31"]]
    assert found.source == "annotated objects of refcoco+"
    assert [image.image_id for image in found.images] == list(found.records)
    assert found.images[0].path == data / "pictures" / f"{NAME}.jpg"


def test_detections_come_best_first(data):
    found = find(data, listed(DETECTIONS))
    assert found.records["30"]["boxes"] == [[5, 5, 10, 10], [6, 5, 11, 10], [1.5, 2, 11.5, 22]]
    assert found.records["30"]["scores"] == [0.9, 0.9, 0.4]
    assert [*found.counts().values()] == [4, 0, 1, ["31"]]
    assert found.source == "dets.json"


def test_boxes_without_a_pixel_are_left_out(data):
    narrow = '{"image_id": 30, "box": [49.5, 0, 20, 20], "score": 1.0}'
    empty = '{"image_id": 9, "box": [3, 3, 0, 5], "score": 0.5}'
    found = find(data, listed([DETECTION, narrow, empty]))
    assert found.report.counts["boxes smaller than a pixel left out"] == 2


def test_ids_may_be_stems(data):
    assert list(find(data, by_stem=True).records) == [NAME, "COCO_train2014_000000000030"]


@pytest.mark.parametrize(
    "second, problem",
    {
        '{"image_id": 9, "box": [1, 2, 3], "score": 0.2}': "bad box",
        f'{{"image_id": 9, "box": [0, 0, 10, 10], "score": 1{"0" * 400}}}': "impossible score",
        '{"image_id": 9, "box": [1, 2, -3, 4], "score": 0.2}': "the box has",
        '{"image_id": 9, "box": [0, 0, 10, 10], "score": null}': "bad score",
        '{"image_id": 9, "box": [1, 1, 2, 2]}': "",
    }.items(),
)
def test_wrong_detections_are_named(data, second, problem):
    with pytest.raises(DataError, match=rf"dets\.json.*element 2: {problem}"):
        find(data, listed([DETECTION, second]))


@pytest.mark.parametrize(
    "detections, problem",
    [
        ("[]", "no image has a box"),
        (f'{{"dets": {listed(DETECTIONS)}}}', "not a list"),
        (listed([UNKNOWN]), "no image has a box"),
    ],
)
def test_files_without_detections_are_refused(data, detections, problem):
    with pytest.raises(DataError, match=rf"dets\.json.*{problem}"):
        find(data, detections)


@pytest.mark.parametrize(
    "images, objects, where",
    [
        ([IMAGE_9], [OBJECT], "annotation 502: "),
        ([IMAGE_9] * 2, OBJECTS_OF_9, "images, element 2: .*9"),
        (IMAGES, [OBJECT] * 2, "annotations, element 2: the id occurs twice: found 502"),
        (IMAGES, [], "no image has a box"),
    ],
)
def test_wrong_instances_are_named(data, images, objects, where):
    write(data, images, objects)
    with pytest.raises(DataError, match=rf"instances\.json.*{where}"):
        find(data)


def test_images_with_one_stem_and_missing_files_are_named(tmp_path, data):
    with pytest.raises(MissingFileError, match=r"none\.json"):
        refcoco_candidates("refcoco+", data, data, tmp_path / "none.json")
    with pytest.raises(MissingFileError, match=r"instances\.json"):
        refcoco_candidates("refcoco+", tmp_path / "nothing", data)
    write(data, [IMAGE_9, IMAGE_30.replace("COCO_train2014_000000000030", f"b/{NAME}")])
    with pytest.raises(DataError, match=r"images, element 2: .*COCO_train2014_"):
        find(data, by_stem=True)


def test_real_objects_read_right(shared, tmp_path):
    folder = shared / "real" / "refcoco" / "documented_records"
    boxes = refcoco_candidates("refcoco", folder, tmp_path).records
    # The object's x, y, width, height in the file are 103.93, 299.99, 134.22, 177.42.
    assert boxes["581857"]["boxes"][0] == pytest.approx([103.93, 299.99, 238.15, 477.41])


# VCR

OTHER = "film/film_00.02@0"


@pytest.fixture
def vcr(tmp_path):
    folder = tmp_path / "vcr"
    write_questions(folder, "train", [question(0), question(1), question(2, clip=OTHER)])
    write_questions(folder, "val", [question(0, "val", clip=OTHER)])
    write_image(folder)
    write_image(folder, OTHER, boxes=[[20, 10, 100, 50]])
    return folder


def test_boxes_of_vcr_are_those_of_the_objects_in_their_order(vcr):
    found = vcr_objects(vcr, "file_stem")
    assert [image.image_id for image in found.images] == list(found.records) == ["film_00.01@0", "film_00.02@0"]
    first, second = (record["boxes"] for record in found.records.values())
    assert_allclose(first, [[20, 10, 100, 50], [0, 60, 200, 90], [150, 0, 200, 100]], atol=1e-3)
    assert_allclose(second, [[20, 10, 100, 50], [0, 0, 200, 100], [0, 0, 200, 100]], atol=1e-3)
    assert found.images[0].path == vcr / "vcr1images" / "film" / "film_00.01@0.jpg"
    assert list(vcr_objects(vcr, "number").records) == ["0", "1", "1000000"]


def test_wrong_files_of_vcr_are_named(vcr):
    write_questions(vcr, "train", [question(0), question(1, clip=OTHER)])
    (vcr / "vcr1images" / f"{OTHER}.json").unlink()
    with pytest.raises(DataError, match=r"line 2: .*film_00\.02@0\.json"):
        vcr_objects(vcr, "file_stem")
    (vcr / "vcr1annots" / "train.jsonl").unlink()
    with pytest.raises(MissingFileError, match=r"train\.jsonl"):
        vcr_objects(vcr, "file_stem")


# The command


def test_scenes_have_both_tracks(tmp_path, capsys):
    write_scenes(tmp_path, images=6, seed=0)
    options = ["--boxes", "refcoco+", "--data-dir", str(tmp_path), "--images", str(tmp_path / "flickr30k-images")]
    options += ["--features", "scenes", "--device", "cpu", "--image-id-format", "file_stem"]
    assert main([*options, "--output", str(tmp_path / "gold")]) == 0
    assert "boxes: annotated objects of refcoco+" in capsys.readouterr().out
    options += ["--detections", str(tmp_path / DETECTIONS_FILE), "--json"]
    assert main([*options, "--output", str(tmp_path / "detected")]) == 0
    info = json.loads(capsys.readouterr().out)
    detected = RegionTable.open(tmp_path / "detected")
    assert len(detected) == 6
    assert set(detected) == set(RegionTable.open(tmp_path / "gold"))
    assert info["boxes"][f"boxes: {Path(DETECTIONS_FILE).name}"] == detected.counts(detected.ids).sum()


@pytest.mark.parametrize(
    "options",
    [
        "--boxes refcoco+",
        "--boxes refcoco+ --data-dir d",
        "--boxes vcr",
        "--boxes vcr --data-dir d --images i",
        "--boxes refcoco --data-dir d --images i --image-id-format img_id",
        "--boxes b.json --images i --data-dir d",
        "--boxes b.json",
        "--detector d",
    ],
)
def test_options_that_do_not_fit_together_are_refused(tmp_path, capsys, options):
    assert main([*options.split(), "--features", "scenes", "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention regions refcoco-boxes`: candidates of RefCOCO's images as boxes for extract_regions."""

import json

import numpy as np
import pytest

from grounded_attention.commands.refcoco_boxes import main
from grounded_attention.dataset_scripts.files.image_files import list_images
from grounded_attention.dataset_scripts.regions.boxes import read_boxes
from grounded_attention.dataset_scripts.scenes.dataset import write_scenes
from grounded_attention.dataset_scripts.scenes.writers_refcoco import DETECTIONS_FILE

IMAGES = [
    {"id": 9, "file_name": "COCO_train2014_000000000009.jpg", "width": 200, "height": 100},
    {"id": 30, "file_name": "COCO_train2014_000000000030.jpg", "width": 50, "height": 80},
    {"id": 31, "file_name": "COCO_train2014_000000000031.jpg", "width": 60, "height": 60},
]
OBJECTS = [
    {"id": 502, "image_id": 30, "bbox": [0, 0, 50, 80], "category_id": 2},
    {"id": 500, "image_id": 9, "bbox": [20.0, 10.0, 100.0, 50.0], "category_id": 1},
    {"id": 501, "image_id": 9, "bbox": [150.0, 60.0, 60.5, 30.0], "category_id": 1, "iscrowd": 1},
]
DETECTIONS = [
    {"image_id": 30, "box": [1.5, 2.0, 10.0, 20.0], "score": 0.4, "det_id": 1, "category_id": 1},
    {"image_id": 9, "box": [0, 0, 10, 10], "score": 0.2, "det_id": 2, "category_id": 1},
    {"image_id": 30, "box": [5, 5, 5, 5], "score": 0.9, "det_id": 3, "category_id": 1},
    {"image_id": 30, "box": [6, 5, 5, 5], "score": 0.9, "det_id": 4, "category_id": 1},
    {"image_id": 777, "box": [5, 5, 5, 5], "score": 0.9, "det_id": 5, "category_id": 1},
]


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "data" / "refcoco+")


def write(folder, images=IMAGES, objects=OBJECTS):
    folder.mkdir(parents=True, exist_ok=True)
    content = {"images": images, "annotations": objects, "categories": []}
    (folder / "instances.json").write_text(json.dumps(content))
    return folder


def run(data, output, *options, detections=None):
    if detections is not None:
        (data / "dets.json").write_text(json.dumps(detections))
        options = ("--detections", str(data / "dets.json"), *options)
    return main(["--data-dir", str(data), "--output", str(output), *options])


@pytest.mark.parametrize("name", ["boxes.json", "boxes.jsonl"])
def test_annotated_objects_come_back_through_the_reader(data, tmp_path, capsys, name):
    assert run(data, tmp_path / name) == 0
    boxes = read_boxes(tmp_path / name)
    assert list(boxes) == ["9", "30"]
    assert list(boxes["9"]) == ["boxes"]
    assert np.array_equal(boxes["9"]["boxes"], [[20, 10, 120, 60], [150, 60, 200, 90]])
    assert np.array_equal(boxes["30"]["boxes"], [[0, 0, 50, 80]])
    assert capsys.readouterr().out.splitlines() == [
        f"ground truth: 3 boxes of 2 images in {tmp_path / name}",
        "  1 boxes clipped at the edge of their image",
        "  1 images without a box: 31",
    ]
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("name", ["boxes.json", "boxes.jsonl"])
def test_detections_come_best_first(data, tmp_path, capsys, name):
    assert run(data, tmp_path / name, "--json", detections=DETECTIONS) == 0
    boxes = read_boxes(tmp_path / name)
    assert np.array_equal(boxes["30"]["boxes"], [[5, 5, 10, 10], [6, 5, 11, 10], [1.5, 2, 11.5, 22]])
    assert boxes["30"]["scores"].tolist() == pytest.approx([0.9, 0.9, 0.4])
    assert json.loads(capsys.readouterr().out) == {
        "output": str(tmp_path / name),
        "track": "detected",
        "images": 2,
        "boxes": 4,
        "images_without_boxes": ["31"],
        "boxes_clipped": 0,
        "boxes_left_out": 0,
        "boxes_in_other_images": 1,
    }


def test_detections_without_scores_keep_their_order(data, tmp_path):
    detections = [{"image_id": 30, "box": [x, 0, 10, 10]} for x in (3, 1, 2)]
    assert run(data, tmp_path / "boxes.json", detections=detections) == 0
    boxes = read_boxes(tmp_path / "boxes.json")
    assert boxes["30"]["boxes"][:, 0].tolist() == [3, 1, 2] and "scores" not in boxes["30"]


def test_images_without_a_detection_are_counted(data, tmp_path, capsys):
    """Expressions of images 9 and 31 have no candidate; that is not an error."""
    assert run(data, tmp_path / "boxes.json", detections=DETECTIONS[:1]) == 0
    assert "2 images without a box: 9, 31" in capsys.readouterr().out
    assert list(read_boxes(tmp_path / "boxes.json")) == ["30"]


def test_many_images_without_a_box_are_listed_in_part(tmp_path, capsys):
    images = [{**IMAGES[0], "id": number} for number in range(40)]
    data = write(tmp_path / "data", images, [{"id": 1, "image_id": 0, "bbox": [0, 0, 9, 9]}])
    assert run(data, tmp_path / "boxes.json") == 0
    assert "39 images without a box: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 29 more" in capsys.readouterr().out


def test_boxes_without_a_pixel_are_skipped(data, tmp_path, capsys):
    detections = [*DETECTIONS[:1], {"image_id": 30, "box": [49.5, 0, 20, 20], "score": 1.0}]
    detections += [{"image_id": 9, "box": [3, 3, 0, 5], "score": 0.5}]
    assert run(data, tmp_path / "boxes.json", detections=detections) == 0
    assert "2 boxes smaller than a pixel left out" in capsys.readouterr().out


def test_ids_and_the_list_of_images_fit_together(data, tmp_path, capsys):
    options = ("--image-id-format", "file_stem", "--images", str(tmp_path / "pictures"))
    assert run(data.parent, tmp_path / "boxes.json", *options, "--image-list", str(tmp_path / "images.txt")) == 0
    listed = list_images(tmp_path / "images.txt")
    assert [image.image_id for image in listed] == list(read_boxes(tmp_path / "boxes.json"))
    assert listed[0].path == tmp_path / "pictures" / "COCO_train2014_000000000009.jpg"


def test_scenes_have_both_tracks(tmp_path, capsys):
    write_scenes(tmp_path / "scenes", images=6, seed=0)
    folder = tmp_path / "scenes"
    assert main(["--data-dir", str(folder), "--output", str(tmp_path / "gt.json")]) == 0
    options = ["--detections", str(folder / DETECTIONS_FILE), "--output", str(tmp_path / "detected.json")]
    assert main(["--data-dir", str(folder), *options]) == 0
    gold, detected = read_boxes(tmp_path / "gt.json"), read_boxes(tmp_path / "detected.json")
    assert set(gold) == set(detected) and len(gold) == 6


def detection(**changes):
    return [DETECTIONS[0], {**DETECTIONS[1], **changes}]


@pytest.mark.parametrize(
    ("detections", "message"),
    [
        (detection(box=[1, 2, 3]), "dets.json, element 2: bad box: found [1, 2, 3], expected x, y, width, height"),
        (detection(box=[1, 2, "3", 4]), "element 2: bad box"),
        (detection(box=[10**400, 2, 3.5, 4]), "element 2: bad box"),
        (detection(score=10**400), "element 2: impossible score"),
        (detection(box=[1, 2, -3, 4]), "element 2: the box has a negative size"),
        (detection(image_id="x"), "element 2: bad image_id"),
        (detection(score=None), "element 2: bad score"),
        ([DETECTIONS[0], {"image_id": 9, "box": [1, 1, 2, 2]}], "element 2: only some detections have a score"),
        ([], "dets.json: no detections"),
        ([3], "element 1: not an object"),
        ({"dets": DETECTIONS}, "dets.json: not a list of detections: found 'dets'"),
        ([DETECTIONS[-1]], "dets.json: no image has a box: expected boxes in the 3 images"),
    ],
)
def test_wrong_detections_are_one_line(data, tmp_path, capsys, detections, message):
    assert run(data, tmp_path / "boxes.json", detections=detections) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and error.startswith("error: ")
    assert not (tmp_path / "boxes.json").exists()


@pytest.mark.parametrize(
    ("images", "objects", "message"),
    [
        (IMAGES[:1], OBJECTS, "annotation 502: the object belongs to an image that is not in the file's list"),
        ([IMAGES[0], IMAGES[0]], OBJECTS[1:], "images, element 2: the image occurs twice: found 9"),
        (IMAGES, [OBJECTS[0]] * 2, "annotations, element 2: the annotation occurs twice: found 502"),
        ([], [], "instances.json: no images"),
        (IMAGES, [], "instances.json: no image has a box"),
        (IMAGES, [{**OBJECTS[0], "bbox": [10**400, 1, 5.5, 5]}], "annotations, element 1: bad bbox"),
    ],
)
def test_wrong_instances_are_one_line(tmp_path, capsys, images, objects, message):
    data = write(tmp_path / "data", images, objects)
    assert run(data, tmp_path / "boxes.json") == 2
    assert message in capsys.readouterr().err


def test_images_with_one_stem_are_one_line(tmp_path, capsys):
    data = write(tmp_path / "data", [IMAGES[0], {**IMAGES[1], "file_name": f"b/{IMAGES[0]['file_name']}"}])
    assert run(data, tmp_path / "boxes.json", "--image-id-format", "file_stem") == 2
    assert "images, element 2: two images have the same id: found 'COCO_train2014_" in capsys.readouterr().err


def test_no_file_is_written_over_another(data, tmp_path, capsys):
    """The file of objects also through a link, and the detections and the boxes through another spelling."""
    detections = data / "dets.json"
    detections.write_text(json.dumps(DETECTIONS))
    (tmp_path / "link.json").symlink_to(data / "instances.json")
    listed = ("--images", str(tmp_path), "--image-list")
    before = {path: path.read_bytes() for path in data.iterdir()}
    for output, options, message in (
        (
            data / "instances.json",
            (),
            "instances.json: found the same file as the file of objects, expected a file of",
        ),
        (tmp_path / "link.json", (), "--output"),
        (detections, ("--detections", str(detections)), "found the same file as --detections"),
        (tmp_path / "a.json", (*listed, str(data / ".." / ".." / "a.json")), "--image-list"),
        (tmp_path / "a.json", (*listed, str(data / "instances.json")), "found the same file as the file of objects"),
    ):
        assert run(data, output, *options) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    assert {path: path.read_bytes() for path in data.iterdir()} == before and not (tmp_path / "a.json").exists()


def test_missing_files_and_options_are_one_line(data, tmp_path, capsys):
    assert run(tmp_path, tmp_path / "boxes.json") == 2
    assert "instances.json" in capsys.readouterr().err
    assert run(data, tmp_path / "boxes.json", "--detections", str(tmp_path / "none.json")) == 2
    assert "none.json: the file is missing; MAttNet's detections are" in capsys.readouterr().err
    assert run(data, tmp_path / "boxes.json", "--image-list", str(tmp_path / "images.txt")) == 2
    assert "must be given together" in capsys.readouterr().err


def test_real_objects_read_right(shared, tmp_path, capsys):
    folder = shared / "real" / "refcoco" / "documented_records"
    assert main(["--data-dir", str(folder), "--config", "refcoco", "--output", str(tmp_path / "boxes.json")]) == 0
    boxes = read_boxes(tmp_path / "boxes.json")
    # The object's x, y, width, height in the file are 103.93, 299.99, 134.22, 177.42.
    assert boxes["581857"]["boxes"][0].tolist() == pytest.approx([103.93, 299.99, 238.15, 477.41])

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention regions vcr-boxes`: objects of VCR's images as boxes for extract_regions."""

import numpy as np
import pytest

from grounded_attention.commands.vcr_boxes import main
from grounded_attention.dataset_scripts.files.image_files import list_images
from grounded_attention.dataset_scripts.regions.boxes import read_boxes
from tests.helpers.vcr_files import question, write, write_image

OTHER = "film/film_00.02@0"


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    write(folder, "train", [question(0), question(1), question(2, clip=OTHER)])
    write(folder, "val", [question(0, "val", clip=OTHER)])
    write_image(folder)
    write_image(folder, OTHER, boxes=[[20, 10, 100, 50]])
    return folder


def run(data, output, *options):
    return main(["--data-dir", str(data), "--output", str(output), *options])


def test_boxes_are_those_of_the_objects_in_their_order(data, tmp_path, capsys):
    options = ("--image-list", str(tmp_path / "images.txt"))
    assert run(data, tmp_path / "boxes.jsonl", *options) == 0
    boxes = read_boxes(tmp_path / "boxes.jsonl")
    assert list(boxes) == ["film_00.01@0", "film_00.02@0"]
    assert np.array_equal(boxes["film_00.01@0"]["boxes"], [[20, 10, 100, 50], [0, 60, 200, 90], [150, 0, 200, 100]])
    assert np.array_equal(boxes["film_00.02@0"]["boxes"], [[20, 10, 100, 50], *[[0, 0, 200, 100]] * 2])
    listed = list_images(tmp_path / "images.txt")
    assert [image.image_id for image in listed] == list(boxes)
    assert listed[0].path == data / "vcr1images" / "film" / "film_00.01@0.jpg"
    expected = f"6 boxes of 2 images in {tmp_path / 'boxes.jsonl'}, 2 of them of the whole image\n"
    assert capsys.readouterr().out == expected


def test_ids_are_those_of_the_builder(data, tmp_path):
    assert run(data, tmp_path / "boxes.json", "--image-id-format", "number") == 0
    assert list(read_boxes(tmp_path / "boxes.json")) == ["0", "1", "1000000"]


def test_no_file_is_written_over_another(data, tmp_path, capsys):
    questions, boxes = data / "vcr1annots" / "val.jsonl", tmp_path / "boxes.jsonl"
    before = questions.read_bytes()
    for output, listed, earlier in ((questions, boxes, "the questions of val"), (boxes, boxes, "--output")):
        assert run(data, output, "--image-list", str(listed)) == 2
        assert f"found the same file as {earlier}" in capsys.readouterr().err
    assert questions.read_bytes() == before and not boxes.exists()


def test_wrong_files_are_one_line(data, tmp_path, capsys):
    write(data, "train", [question(0), question(1, clip=OTHER)])
    assert run(data, tmp_path / "boxes.json", "--image-id-format", "img_id") == 2
    assert "train.jsonl, line 2: two images have one id" in capsys.readouterr().err
    (data / "vcr1images" / f"{OTHER}.json").unlink()
    assert run(data, tmp_path / "boxes.json") == 2
    assert "line 2: the file with the boxes of its image is missing" in capsys.readouterr().err
    (data / "vcr1annots" / "train.jsonl").unlink()
    assert run(data, tmp_path / "boxes.json") == 2
    assert "train.jsonl: the file is missing" in capsys.readouterr().err
    assert not (tmp_path / "boxes.json").exists()

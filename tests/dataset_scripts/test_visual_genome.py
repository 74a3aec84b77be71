# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import json

import numpy as np
import pytest

from grounded_attention.commands.build_data import main
from grounded_attention.dataset_scripts.builders.visual_genome_regions import VisualGenomeRegions
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from tests.helpers.built import built

IMAGE = """{"image_id": 7, "width": 200, "height": 100, "coco_id": null, "url": "https://x.org/1.jpg",
    "flickr_id": null}"""
REGION = '{"region_id": 1, "image_id": 7, "phrase": "a dog", "x": 0, "y": 0, "width": 9, "height": 9}'
ONE_REGION = f'[{{"id": 7, "regions": [{REGION}]}}]'


def write(folder, images=f"[{IMAGE}]", records=ONE_REGION):
    folder.mkdir(exist_ok=True)
    (folder / "image_data.json").write_text(images)
    (folder / "region_descriptions.json").write_text(records)
    return folder


def write_images(folder, coco_ids):
    """Images with these ids of COCO, one region each."""
    images = []
    records = []
    for number, coco_id in coco_ids.items():
        images.append({**json.loads(IMAGE), "image_id": number, "coco_id": coco_id})
        region = {**json.loads(REGION), "region_id": number, "image_id": number}
        records.append({"id": number, "regions": [region]})
    return write(folder, json.dumps(images), json.dumps(records))


def build(data_dir, tmp_path, **options):
    return built(VisualGenomeRegions, data_dir, tmp_path / "cache", **options)


REGIONS = r"""[{"id": 7, "regions": [
    {"region_id": 1, "image_id": 7, "x": 20, "y": 10, "width": 100, "height": 50, "phrase": " the dog\n runs "},
    {"region_id": 2, "image_id": 7, "x": -20, "y": -10, "width": 120, "height": 60, "phrase": "a dog"},
    {"region_id": 3, "image_id": 7, "x": 150, "y": 50, "width": 60, "height": 60, "phrase": "a dog"},
    {"region_id": 4, "image_id": 7, "x": 201, "y": 5, "width": 10, "height": 10, "phrase": "a dog"},
    {"region_id": 5, "image_id": 7, "x": -5, "y": 5, "width": 5, "height": 10, "phrase": "a dog"},
    {"region_id": 6, "image_id": 7, "x": 5, "y": 5, "width": 0, "height": 10, "phrase": "a dog"},
    {"region_id": 7, "image_id": 7, "x": 50, "y": 5, "width": -20, "height": 10, "phrase": "a dog"},
    {"region_id": 8, "image_id": 7, "x": 5, "y": 5, "width": 10, "height": 10, "phrase": "  "},
    {"region_id": 9, "image_id": 7, "x": 0, "y": 0, "width": 200, "height": 100, "phrase": "a dog"}]}]"""


def test_boxes_are_clipped_and_outside_ones_skipped(tmp_path):
    builder = build(write(tmp_path / "data", records=REGIONS), tmp_path)
    [row] = builder.as_dataset("train")
    assert {"image_id": "7", "width": 200, "height": 100}.items() <= row.items()
    assert row["caption_ids"] == ["1", "2", "3", "9"]
    assert row["captions"] == ["the dog runs", "a dog", "a dog", "a dog"]
    phrases = row["phrases"]
    assert [phrase["text"] for phrase in phrases] == row["captions"]
    assert [phrase["sentence"] for phrase in phrases] == [0, 1, 2, 3]
    boxes = json.loads("[[0.1, 0.1, 0.6, 0.6], [0, 0, 0.5, 0.5], [0.75, 0.5, 1, 1], [0, 0, 1, 1]]")
    np.testing.assert_allclose([phrase["boxes"][0] for phrase in phrases], boxes, rtol=1e-6)
    report = """{"images": 1, "regions": 4, "regions_clipped": 2, "regions_without_area": 4,
        "regions_without_words": 1, "examples": {"regions_without_area": ["4", "5", "6", "7"],
        "regions_without_words": ["8"]}}"""
    assert builder.report["train"] == json.loads(report)


def test_names_of_other_versions(tmp_path):
    image = '{"id": 7, "width": 200, "height": 100, "coco_id": null, "url": "https://x.org/1.jpg", "flickr_id": null}'
    region = '{"id": 3, "image": 7, "phrase": "a cat", "x": 0, "y": 0, "w": 100, "h": 50}'
    data = write(tmp_path / "data", f"[{image}]", f'[{{"image_id": 7, "regions": [{region}]}}]')
    [row] = build(data, tmp_path).as_dataset("train")
    assert row["captions"] == ["a cat"]
    assert row["caption_ids"] == ["3"]
    assert row["phrases"] == [{"text": "a cat", "start": 0, "end": 5, "sentence": 0, "boxes": [[0, 0, 0.5, 0.5]]}]


def test_images_without_regions_and_images_of_coco(tmp_path):
    data = write_images(tmp_path / "data", {4: None, 3: None, 2: 12, 1: 11})
    path = data / "region_descriptions.json"
    records = json.loads(path.read_text())
    records[1]["regions"] = []
    path.write_text(json.dumps(records))
    (tmp_path / "coco.txt").write_text("12\n99\n")
    builder = build(data, tmp_path, without_coco_ids=str(tmp_path / "coco.txt"))
    assert builder.as_dataset("train")["image_id"][:] == ["4", "1"]
    report = builder.report["train"]
    assert report["images_left_out_by_coco_id"] == 1
    assert report["examples"]["images_without_regions"] == ["3"]
    assert build(data, tmp_path).as_dataset("train")["image_id"][:] == ["4", "2", "1"]


@pytest.mark.parametrize(
    "listed",
    ["000000000012", "val2014/COCO_val2014_000000000012.jpg", "COCO_train2014_000000000012_7.jpg", "b'12'", '"12.0"'],
)
def test_all_spellings_of_a_coco_image_are_left_out(tmp_path, listed):
    data = write_images(tmp_path / "data", {1: 11, 2: 12, 12: None})
    (tmp_path / "coco.txt").write_text(f"{listed}\n99\n")
    builder = build(data, tmp_path, without_coco_ids=str(tmp_path / "coco.txt"))
    assert builder.as_dataset("train")["image_id"][:] == ["1", "12"]


@pytest.mark.parametrize("form", ["{},{}", "[{}, {}]", "['{}','{}']"])
def test_lists_of_files_on_the_command_line(tmp_path, capsys, form):
    data = write_images(tmp_path / "data", {1: 11, 2: 12, 3: 13})
    first = tmp_path / "a.txt"
    second = tmp_path / "b.txt"
    first.write_text("11\n")
    second.write_text("13\n")
    command = ["visual_genome_regions", "--data-dir", str(data), "--output", str(tmp_path / "out"), "--json"]
    command.append("without_coco_ids=" + form.format(first, second))
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == {"train": 1}
    second.write_text("2\n")  # an id of Visual Genome, not of COCO
    assert main(command) == 2
    assert str(second) in capsys.readouterr().err.splitlines()[-1]


WRONG_RECORDS = {
    '[{"id": 8, "regions": []}]': r"element 1: the image is not in image_data\.json: found 8",
    '[{"id": 7, "regions": []}, {"id": 7, "regions": []}]': "element 2: the image occurs twice",
    f'[{{"id": 7, "regions": [{REGION}, {REGION}]}}]': "element 1, region 2: the region occurs twice",
    '[{"id": 7}]': "regions is missing",
    "[]": "no images",
    '{"regions": [1]}': "not a list: found 'regions'",
    ONE_REGION[:-30]: "element 1: the file ends too early",
    ONE_REGION.replace('"x": 0', '"x": -1e999'): "element 1: -1e999 is too large for a number",
}


@pytest.mark.parametrize("records, message", WRONG_RECORDS.items())
def test_wrong_records_are_named(tmp_path, records, message):
    with pytest.raises(DataError, match=rf"region_descriptions\.json.*{message}"):
        build(write(tmp_path / "data", records=records), tmp_path)


@pytest.mark.parametrize(
    "field, replacement, message",
    [
        ('"image_id": 7', '"image_id": 8', "the region belongs to another image"),
        ('"x": 0', '"x": "0"', "bad x: found '0', expected a number"),
        ('"x": 0', f'"x": {10**400}', "impossible x"),
        (
            '0, "y": 0, "width": 9, "height": 9',
            '0.2, "y": 0.3, "width": 0.8, "height": 0.7',
            "the box looks normalised",
        ),
        ('"a dog"', "null", "bad phrase"),
    ],
)
def test_wrong_regions_are_named(tmp_path, field, replacement, message):
    data = write(tmp_path / "data", records=ONE_REGION.replace(field, replacement))
    with pytest.raises(DataError, match=rf"region_descriptions\.json, element 1, region 1: {message}"):
        build(data, tmp_path)


WRONG_IMAGES = {
    '[{"image_id": 7, "width": 0, "height": 100}]': "element 1: impossible width: found 0",
    f"[{IMAGE}, {IMAGE}]": "element 2: the image occurs twice",
    "[7]": "element 1: not an object",
    "[]": "no images",
    f'{{"images": [{IMAGE}]}}': "not a list: found 'images'",
}


@pytest.mark.parametrize("images, message", WRONG_IMAGES.items())
def test_wrong_image_data_are_named(tmp_path, images, message):
    with pytest.raises(DataError, match=rf"image_data\.json.*{message}"):
        build(write(tmp_path / "data", images, "[]"), tmp_path)


def test_missing_files_are_named(tmp_path):
    data = write(tmp_path / "data")
    (data / "image_data.json").unlink()
    with pytest.raises(MissingFileError, match=r"image_data\.json: .*image_data\.json\.zip from https"):
        build(data, tmp_path)
    with pytest.raises(MissingFileError, match="the file is missing"):
        build(tmp_path / "nowhere", tmp_path)
    with pytest.raises(DataError, match="no such split"):
        build(data, tmp_path, splits="test")
    data = write(tmp_path / "data", records="[]")
    with pytest.raises(MissingFileError, match=r"ids\.txt: the file is missing"):
        build(data, tmp_path, without_coco_ids=str(tmp_path / "ids.txt"))


def test_real_excerpts(shared, tmp_path):
    folder = shared / "real" / "vg"
    rows = {row["image_id"]: row for row in build(folder, tmp_path).as_dataset("train")}
    records = json.loads((folder / "region_descriptions.json").read_text())
    counts = {str(record["id"]): len(record["regions"]) for record in records}
    assert {image_id: len(row["phrases"]) for image_id, row in rows.items()} == counts
    phrase = rows["1"]["phrases"][0]
    assert rows["1"]["caption_ids"][0] == "1382"
    assert phrase["text"] == "the clock is green in colour"
    assert phrase["boxes"][0] == pytest.approx([421 / 800, 57 / 600, 503 / 800, 196 / 600])

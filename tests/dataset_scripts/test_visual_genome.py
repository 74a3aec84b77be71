# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import json

import numpy as np
import pytest

from grounded_attention.commands.build_data import main
from grounded_attention.dataset_scripts.builders.visual_genome_regions import VisualGenomeRegions
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError

COMMON = {"url": "https://x.org/VG_100K/1.jpg", "flickr_id": None}


def image(number, width=200, height=100, coco_id=None, **changes):
    return {"image_id": number, "width": width, "height": height, "coco_id": coco_id, **COMMON, **changes}


def region(number, image_id, box, phrase="a dog", **changes):
    x, y, width, height = box
    place = {"x": x, "y": y, "width": width, "height": height}
    return {"region_id": number, "image_id": image_id, "phrase": phrase, **place, **changes}


def write(folder, images, records):
    folder.mkdir(exist_ok=True)
    (folder / "image_data.json").write_text(json.dumps(images))
    (folder / "region_descriptions.json").write_text(json.dumps(records))
    return folder


def build(data_dir, tmp_path, **options):
    builder = VisualGenomeRegions(data_dir=str(data_dir), cache_dir=str(tmp_path / "cache"), **options)
    builder.download_and_prepare()
    return builder


def test_boxes_are_clipped_and_outside_ones_skipped(tmp_path):
    regions = [
        region(1, 7, (20, 10, 100, 50), " the dog\n runs "),
        region(2, 7, (-20, -10, 120, 60)),
        region(3, 7, (150, 50, 60, 60)),
        region(4, 7, (201, 5, 10, 10)),
        region(5, 7, (-5, 5, 5, 10)),
        region(6, 7, (5, 5, 0, 10)),
        region(7, 7, (50, 5, -20, 10)),
        region(8, 7, (5, 5, 10, 10), "  "),
        region(9, 7, (0, 0, 200, 100)),
    ]
    builder = build(write(tmp_path / "data", [image(7)], [{"regions": regions, "id": 7}]), tmp_path)
    [row] = builder.as_dataset("train")
    assert (row["image_id"], row["width"], row["height"]) == ("7", 200, 100)
    expected = [("1", "the dog runs"), ("2", "a dog"), ("3", "a dog"), ("9", "a dog")]
    assert list(zip(row["caption_ids"], row["captions"], strict=True)) == expected
    assert [(each["sentence"], each["text"]) for each in row["phrases"]] == list(enumerate(row["captions"]))
    boxes = [[0.1, 0.1, 0.6, 0.6], [0, 0, 0.5, 0.5], [0.75, 0.5, 1, 1], [0, 0, 1, 1]]
    np.testing.assert_allclose([found["boxes"][0] for found in row["phrases"]], boxes, rtol=1e-6)
    counts = {"images": 1, "regions": 4, "regions_clipped": 2, "regions_without_area": 4, "regions_without_words": 1}
    examples = {"regions_without_area": ["4", "5", "6", "7"], "regions_without_words": ["8"]}
    assert builder.report["train"] == {**counts, "examples": examples}


def test_names_of_other_versions(tmp_path):
    images = [{**image(7), "id": 7}]
    del images[0]["image_id"]
    place = {"x": 0, "y": 0, "w": 100, "h": 50}
    records = [{"image_id": 7, "regions": [{"id": 3, "image": 7, "phrase": "a cat", **place}]}]
    [row] = build(write(tmp_path / "data", images, records), tmp_path).as_dataset("train")
    assert (row["captions"], row["caption_ids"]) == (["a cat"], ["3"])
    assert row["phrases"] == [{"text": "a cat", "start": 0, "end": 5, "sentence": 0, "boxes": [[0, 0, 0.5, 0.5]]}]


def test_images_without_regions_and_images_of_coco(tmp_path):
    images = [image(1, coco_id=11), image(2, coco_id=12), image(3), image(4)]
    records = [{"id": n, "regions": [region(n, n, (0, 0, 9, 9))] if n != 3 else []} for n in (4, 3, 2, 1)]
    data = write(tmp_path / "data", images, records)
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
def test_all_spellings_of_a_coco_image_are_left_out(tmp_path, capsys, listed):
    images = [image(1, coco_id=11), image(2, coco_id=12), image(12)]
    records = [{"id": n, "regions": [region(n, n, (0, 0, 9, 9))]} for n in (1, 2, 12)]
    data = write(tmp_path / "data", images, records)
    (tmp_path / "coco.txt").write_text(f"{listed}\n99\n")
    builder = build(data, tmp_path, without_coco_ids=str(tmp_path / "coco.txt"))
    assert builder.as_dataset("train")["image_id"][:] == ["1", "12"]


@pytest.mark.parametrize("form", ["{},{}", "[{}, {}]", "['{}','{}']"])
def test_lists_of_files_on_the_command_line(tmp_path, capsys, form):
    images = [image(n, coco_id=10 + n) for n in (1, 2, 3)]
    records = [{"id": n, "regions": [region(n, n, (0, 0, 9, 9))]} for n in (1, 2, 3)]
    data = write(tmp_path / "data", images, records)
    lists = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, listed in zip(lists, (11, 13), strict=True):
        path.write_text(f"{listed}\n")
    command = ["visual_genome_regions", "--data-dir", str(data), "--output", str(tmp_path / "out"), "--json"]
    command.append("without_coco_ids=" + form.format(*lists))
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == {"train": 1}
    lists[1].write_text("2\n")  # an id of Visual Genome, not of COCO
    assert main(command) == 2
    assert f"{lists[1]}" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    "records, message",
    [
        ([{"id": 8, "regions": []}], r"element 1: the image is not in image_data\.json: found 8"),
        ([{"id": 7, "regions": []}] * 2, "element 2: the image occurs twice"),
        ([{"id": 7, "regions": [region(1, 7, (0, 0, 9, 9))] * 2}], "element 1, region 2: the region occurs twice"),
        ([{"id": 7, "regions": [region(1, 8, (0, 0, 9, 9))]}], "region 1: the region belongs to another image"),
        ([{"id": 7, "regions": [region(1, 7, ("0", 0, 9, 9))]}], "region 1: bad x: found '0', expected a number"),
        ([{"id": 7, "regions": [region(1, 7, (10**400, 0, 9, 9))]}], "region 1: impossible x"),
        ([{"id": 7, "regions": [region(1, 7, (0.2, 0.3, 0.8, 0.7))]}], "region 1: the box looks normalised"),
        ([{"id": 7, "regions": [region(1, 7, (0, 0, 9, 9), phrase=None)]}], "bad phrase"),
        ([{"id": 7}], "regions is missing"),
        ([], "no images"),
        ({"regions": [1]}, "not a list: found 'regions'"),
    ],
)
def test_bad_regions(tmp_path, records, message):
    with pytest.raises(DataError, match=message) as caught:
        build(write(tmp_path / "data", [image(7)], records), tmp_path)
    assert "region_descriptions.json" in str(caught.value)


@pytest.mark.parametrize(
    "images, message",
    [
        ([image(7, width=0)], "element 1: impossible width: found 0"),
        ([image(7), image(7)], "element 2: the image occurs twice"),
        ([7], "element 1: not an object"),
        ([], "no images"),
        ({"images": [image(7)]}, "not a list: found 'images'"),
    ],
)
def test_bad_image_data(tmp_path, images, message):
    with pytest.raises(DataError, match=message) as caught:
        build(write(tmp_path / "data", images, []), tmp_path)
    assert "image_data.json" in str(caught.value)


def test_infinity_is_no_place(tmp_path):
    data = write(tmp_path / "data", [image(7)], [{"id": 7, "regions": [region(1, 7, ("X", 1, "Y", 5))]}])
    path = data / "region_descriptions.json"
    path.write_text(path.read_text().replace('"X"', "-1e999").replace('"Y"', "1e999"))
    with pytest.raises(DataError, match=r"descriptions\.json, element 1: -1e999 is too large for a number"):
        build(data, tmp_path)


def test_missing_and_truncated_files(tmp_path):
    data = write(tmp_path / "data", [image(7)], [{"id": 7, "regions": [region(1, 7, (0, 0, 9, 9))]}])
    path = data / "region_descriptions.json"
    path.write_text(path.read_text()[:-30])
    with pytest.raises(DataError, match=r"region_descriptions\.json, element 1: the file ends too early"):
        build(data, tmp_path)
    (data / "image_data.json").unlink()
    with pytest.raises(MissingFileError, match=r"image_data\.json: .*image_data\.json\.zip from https"):
        build(data, tmp_path)
    with pytest.raises(MissingFileError, match="the file is missing"):
        build(tmp_path / "nowhere", tmp_path)
    with pytest.raises(DataError, match="no such split"):
        build(data, tmp_path, splits="test")
    path.unlink()
    data = write(tmp_path / "data", [image(7)], [])
    with pytest.raises(MissingFileError, match=r"ids\.txt: the file is missing"):
        build(data, tmp_path, without_coco_ids=str(tmp_path / "ids.txt"))


def test_real_excerpts(shared, tmp_path):
    folder = shared / "real" / "vg"
    builder = build(folder, tmp_path)
    rows = {row["image_id"]: row for row in builder.as_dataset("train")}
    raw = {record["id"]: record["regions"] for record in json.loads((folder / "region_descriptions.json").read_text())}
    assert {key: len(row["phrases"]) for key, row in rows.items()} == {str(k): len(v) for k, v in raw.items()}
    first = rows["1"]["phrases"][0]
    box = [421 / 800, 57 / 600, 503 / 800, 196 / 600]
    assert (rows["1"]["caption_ids"][0], first["text"]) == ("1382", "the clock is green in colour")
    assert first["boxes"][0] == pytest.approx(box)

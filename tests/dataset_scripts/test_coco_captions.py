# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import json

import pytest

from grounded_attention.dataset_scripts.builders.coco_captions import CocoCaptions
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from tests.helpers.built import built

TRAIN = r"""{"info": {"year": 2014}, "licenses": [{"id": 1}], "images": [
    {"id": 8, "file_name": "COCO_train2014_000000000008.jpg", "height": 480, "width": 640, "license": 5},
    {"id": 7, "file_name": "COCO_train2014_000000000007.jpg", "height": 1, "width": 639, "license": 5},
    {"id": 6, "file_name": "COCO_train2014_000000000006.jpg", "height": 480, "width": 640, "license": 5}],
    "annotations": [
    {"image_id": 8, "id": 3, "caption": " Two dogs\n on a lawn.  "}, {"image_id": 7, "id": 1, "caption": "A cat ."},
    {"image_id": 8, "id": 2, "caption": "A dog."}, {"image_id": 7, "id": 4, "caption": " \n"}]}"""
VALIDATION = """{"annotations": [{"image_id": 9, "id": 90, "caption": "A cat ."}],
    "images": [{"id": 9, "file_name": "000000000009.jpg", "height": 480, "width": 640}]}"""
KARPATHY = r"""{"dataset": "coco", "images": [
    {"cocoid": 1, "split": "test", "filepath": "val2014", "filename": "COCO_val2014_000000000001.jpg",
    "sentences": [{"raw": "A cat.", "sentid": 10}]},
    {"cocoid": 2, "split": "restval", "filepath": "val2014", "filename": "COCO_val2014_000000000002.jpg",
    "sentences": [{"raw": "A cat.", "sentid": 20}]},
    {"cocoid": 3, "split": "train", "filepath": "val2014", "filename": "COCO_val2014_000000000003.jpg",
    "sentences": [{"raw": "A  cat\n", "sentid": 30}, {"raw": " ", "sentid": 31}]},
    {"cocoid": 4, "split": "val", "filepath": "val2014", "filename": "COCO_val2014_000000000004.jpg",
    "sentences": [{"raw": "A cat.", "sentid": 40}]}]}"""
NO_IMAGES = '{"images": [], "annotations": []}'


def write_official(folder, train=TRAIN, year="2014"):
    annotations = folder / "annotations"
    annotations.mkdir(parents=True, exist_ok=True)
    (annotations / f"captions_train{year}.json").write_text(train)
    (annotations / f"captions_val{year}.json").write_text(VALIDATION)
    return folder


def write_karpathy(folder, text=KARPATHY):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset_coco.json").write_text(text)
    return folder


def build(data_dir, tmp_path, name="official", **options):
    return built(CocoCaptions, data_dir, tmp_path / "cache", config_name=name, **options)


@pytest.mark.parametrize("inside", ["", "coco"])
def test_official_rows(tmp_path, inside):
    write_official(tmp_path / "data" / inside)
    builder = build(tmp_path / "data", tmp_path)
    rows = builder.as_dataset()
    assert set(rows) == {"train", "validation"}
    assert rows["validation"]["image_id"][:] == ["9"]
    expected = """{"image_id": ["8", "7"], "width": [640, 639], "height": [480, 1],
        "captions": [["Two dogs on a lawn.", "A dog."], ["A cat ."]], "caption_ids": [["3", "2"], ["1"]],
        "file_name": ["COCO_train2014_000000000008.jpg", "COCO_train2014_000000000007.jpg"]}"""
    assert rows["train"][:] == json.loads(expected)
    counts = {"images": 2, "captions": 3, "captions_without_words": 1, "images_without_captions": 1}
    assert counts.items() <= builder.report["train"].items()
    assert builder.report["train"]["examples"] == {"captions_without_words": ["4"], "images_without_captions": ["6"]}


def test_annotations_may_come_before_images_and_other_years_exist(tmp_path):
    write_official(tmp_path / "data", year="2017")
    rows = build(tmp_path / "data", tmp_path, year="2017", image_id_format="file_stem", splits="validation")
    assert rows.as_dataset("validation")["image_id"][:] == ["000000000009"]


def test_karpathy_splits(tmp_path):
    builder = build(write_karpathy(tmp_path / "data"), tmp_path, "karpathy")
    rows = builder.as_dataset()
    ids = {split: data["image_id"][:] for split, data in rows.items()}
    assert ids == {"train": ["2", "3"], "validation": ["4"], "test": ["1"]}
    row = rows["train"][1]
    assert row["captions"] == ["A cat"]
    assert row["caption_ids"] == ["30"]
    assert row["width"] is row["height"] is None
    assert builder.report["train"]["captions_without_words"] == 1
    assert "captions_without_words" not in builder.report["test"]


@pytest.mark.parametrize(
    "text, replacement, message",
    [
        ('"image_id": 8, "id": 2', '"image_id": 5, "id": 2', "captions of 1 images .* list of images: found 5"),
        ('"id": 1, "caption"', '"id": 3, "caption"', "annotations, element 2: id occurs twice: found 3"),
        ('"id": 7', '"id": 8', "images, element 2: the image occurs twice"),
        ("COCO_train2014_000000000007", "b/COCO_train2014_000000000008", "two images have the same id"),
        ("639", "0", "impossible width: found 0"),
        ("639", '"639"', "bad width: found '639'"),
        ('"caption": "A dog."', '"bbox": []', r"caption is missing.*is it captions_\*\.json"),
        (TRAIN, NO_IMAGES, "no images"),
    ],
)
def test_bad_official_records(tmp_path, text, replacement, message):
    data = write_official(tmp_path / "data", TRAIN.replace(text, replacement))
    with pytest.raises(DataError, match=rf"captions_train2014\.json.*{message}"):
        build(data, tmp_path, image_id_format="file_stem")


@pytest.mark.parametrize(
    "text, replacement, message",
    [
        ('"val"', '"dev"', "element 4: unknown split: found 'dev'"),
        ('"cocoid": 4', '"cocoid": 1', "element 4: the image occurs twice"),
        ('"sentid": 31', '"sentid": 30', "sentence 2: sentid occurs twice"),
        ('"raw": "A cat.", ', "", "sentence 1: raw is missing"),
        (KARPATHY, NO_IMAGES, "no images"),
    ],
)
def test_bad_karpathy_records(tmp_path, text, replacement, message):
    data = write_karpathy(tmp_path / "data", KARPATHY.replace(text, replacement))
    with pytest.raises(DataError, match=rf"dataset_coco\.json.*{message}"):
        build(data, tmp_path, "karpathy", splits="train")


def test_truncated_and_missing_files(tmp_path):
    data = write_official(tmp_path / "data")
    path = data / "annotations" / "captions_train2014.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(DataError, match=r"captions_train2014\.json, annotations element 4: the file ends too early"):
        build(data, tmp_path)
    path.unlink()
    with pytest.raises(MissingFileError, match=r"captions_train2014\.json: .*annotations_trainval2014\.zip"):
        build(data, tmp_path)
    with pytest.raises(MissingFileError, match=r"dataset_coco\.json: .*caption_datasets\.zip"):
        build(data, tmp_path, "karpathy")
    with pytest.raises(MissingFileError, match="does not exist"):
        build(tmp_path / "nowhere", tmp_path)


@pytest.mark.parametrize(
    "options, message",
    {
        '{"image_id_format": "stem"}': "expected 'number' or 'file_stem'",
        '{"splits": "test"}': "no such split: found 'test', expected train or validation",
        '{"name": "karpathy", "year": "2017"}': "exist for 2014 only",
    }.items(),
)
def test_wrong_options_are_named(tmp_path, options, message):
    with pytest.raises(DataError, match=message):
        build(tmp_path, tmp_path, **json.loads(options))

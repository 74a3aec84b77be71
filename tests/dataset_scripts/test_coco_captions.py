# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import json

import pytest

from grounded_attention.dataset_scripts.builders.coco_captions import CocoCaptions
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError


def image(number, split="train", **changes):
    name = f"COCO_{split}2014_{number:012d}.jpg"
    return {"license": 5, "file_name": name, "height": 480, "width": 640, "id": number, **changes}


def caption(number, image_id, text="A cat ."):
    return {"image_id": image_id, "id": number, "caption": text}


def write_official(folder, train, val=None, year="2014"):
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    for split, content in (("train", train), ("val", val or content_of([image(9, "val")], [caption(90, 9)]))):
        (folder / "annotations" / f"captions_{split}{year}.json").write_text(json.dumps(content))
    return folder


def content_of(images, annotations):
    return {"info": {"year": 2014}, "images": images, "licenses": [{"id": 1}], "annotations": annotations}


def karpathy_image(number, split, texts=("A cat.",), **changes):
    sentences = [
        {"tokens": text.split(), "raw": text, "imgid": 0, "sentid": 10 * number + k} for k, text in enumerate(texts)
    ]
    place = {"filepath": "val2014", "filename": f"COCO_val2014_{number:012d}.jpg"}
    return {**place, "split": split, "sentences": sentences, "cocoid": number, **changes}


def write_karpathy(folder, images):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dataset_coco.json").write_text(json.dumps({"images": images, "dataset": "coco"}))
    return folder


def build(data_dir, tmp_path, name="official", **options):
    builder = CocoCaptions(data_dir=str(data_dir), cache_dir=str(tmp_path / "cache"), config_name=name, **options)
    builder.download_and_prepare()
    return builder


@pytest.mark.parametrize("inside", ["", "coco"])
def test_official_rows(tmp_path, inside):
    annotations = [
        caption(3, 8, " Two dogs\n on a lawn.  "),
        caption(1, 7),
        caption(2, 8, "A dog."),
        caption(4, 7, " \n"),
    ]
    write_official(tmp_path / "data" / inside, content_of([image(8), image(7, height=1), image(6)], annotations))
    builder = build(tmp_path / "data", tmp_path)
    rows = builder.as_dataset()
    expected = {
        ("8", 480): {"3": "Two dogs on a lawn.", "2": "A dog."},
        ("7", 1): {"1": "A cat ."},
    }
    assert [{**row, "width": row["width"] - 640} for row in rows["train"]] == [
        {"image_id": image_id, "width": 0, "height": height, "captions": [*captions.values()],
         "caption_ids": [*captions], "file_name": f"COCO_train2014_00000000000{image_id}.jpg"}
        for (image_id, height), captions in expected.items()
    ]  # fmt: skip
    assert rows["validation"]["image_id"][:] == ["9"]
    assert set(rows) == {"train", "validation"}
    counts = {"images": 2, "captions": 3, "captions_without_words": 1, "images_without_captions": 1}
    assert counts.items() <= builder.report["train"].items()
    assert builder.report["train"]["examples"] == {"captions_without_words": ["4"], "images_without_captions": ["6"]}


def test_annotations_may_come_before_images_and_other_years_exist(tmp_path):
    content = content_of([image(8, file_name="000000000008.jpg")], [caption(3, 8)])
    write_official(tmp_path / "data", dict(reversed(content.items())), year="2017")
    rows = build(tmp_path / "data", tmp_path, year="2017", image_id_format="file_stem", splits="train")
    assert rows.as_dataset("train")["image_id"][:] == ["000000000008"]


def test_karpathy_splits(tmp_path):
    images = [karpathy_image(1, "test"), karpathy_image(2, "restval"), karpathy_image(3, "train", ["A  cat\n", " "])]
    write_karpathy(tmp_path / "data", [*images, karpathy_image(4, "val")])
    builder = build(tmp_path / "data", tmp_path, "karpathy")
    rows = builder.as_dataset()
    ids = {split: data["image_id"][:] for split, data in rows.items()}
    assert ids == {"train": ["2", "3"], "validation": ["4"], "test": ["1"]}
    [row] = rows["train"].filter(lambda row: row["image_id"] == "3")
    assert row["captions"] == ["A cat"]
    assert row["caption_ids"] == ["30"]
    assert row["width"] is row["height"] is None
    assert builder.report["train"]["captions_without_words"] == 1
    assert "captions_without_words" not in builder.report["test"]


@pytest.mark.parametrize(
    "images, annotations, message",
    [
        ([image(1)], [caption(1, 1), caption(2, 5)], r"not in the file's list of images \(1 images\): found 5"),
        ([image(1)], [caption(1, 1), caption(1, 1)], "annotations, element 2: id occurs twice: found 1"),
        ([image(1), image(1)], [], "images, element 2: the image occurs twice"),
        ([image(1, file_name="a/x.jpg"), image(2, file_name="b/x.jpg")], [], "two images have the same id: found 'x'"),
        ([image(1, width=0)], [], "impossible width: found 0"),
        ([image(1, width="640")], [], "bad width: found '640'"),
        ([image(1)], [{"image_id": 1, "id": 1, "bbox": []}], r"caption is missing.*is it captions_\*\.json"),
        ([], [], "no images"),
    ],
)
def test_bad_official_records(tmp_path, images, annotations, message):
    data = write_official(tmp_path / "data", content_of(images, annotations))
    with pytest.raises(DataError, match=message) as caught:
        build(data, tmp_path, image_id_format="file_stem")
    assert "captions_train2014.json" in str(caught.value)


@pytest.mark.parametrize(
    "images, message",
    [
        ([karpathy_image(1, "dev")], "element 1: unknown split: found 'dev'"),
        ([karpathy_image(1, "test"), karpathy_image(1, "train")], "element 2: the image occurs twice"),
        ([karpathy_image(1, "test", sentences=[{"raw": "x", "sentid": 1}] * 2)], "sentence 2: sentid occurs twice"),
        ([karpathy_image(1, "test", sentences=[{"sentid": 1}])], "sentence 1: raw is missing"),
        ([], "no images"),
    ],
)
def test_bad_karpathy_records(tmp_path, images, message):
    data = write_karpathy(tmp_path / "data", images)
    with pytest.raises(DataError, match=message) as caught:
        build(data, tmp_path, "karpathy", splits="train")
    assert "dataset_coco.json" in str(caught.value)


def test_truncated_and_missing_files(tmp_path):
    data = write_official(tmp_path / "data", content_of([image(1)], [caption(1, 1)]))
    path = data / "annotations" / "captions_train2014.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(DataError, match=r"captions_train2014\.json, annotations element 1: the file ends too early"):
        build(data, tmp_path)
    path.unlink()
    with pytest.raises(MissingFileError, match=r"captions_train2014\.json: .*annotations_trainval2014\.zip"):
        build(data, tmp_path)
    with pytest.raises(MissingFileError, match=r"dataset_coco\.json: .*caption_datasets\.zip"):
        build(data, tmp_path, "karpathy")
    with pytest.raises(MissingFileError, match="does not exist"):
        build(tmp_path / "nowhere", tmp_path)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("official", {"image_id_format": "stem"}, "expected 'number' or 'file_stem'"),
        ("official", {"splits": "test"}, "no such split: found 'test', expected train or validation"),
        ("karpathy", {"year": "2017"}, "exist for 2014 only"),
    ],
)
def test_bad_options(tmp_path, name, options, message):
    with pytest.raises(DataError, match=message):
        build(tmp_path, tmp_path, name, **options)

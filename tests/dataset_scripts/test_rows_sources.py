# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Files, folders and data sets as sources of rows: formats of tools, types of values, damaged and odd rows."""

import base64
import csv
import io
import json
from decimal import Decimal

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from grounded_attention import grounded_rows
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.rows.readings import UnclearBoxes
from grounded_attention.dataset_scripts.rows.sources import _csv

SIZE = (400, 300)
BOX = [0.1, 0.2, 0.6, 0.9]
XYXY = [40, 60, 240, 270]
XYWH = [40, 60, 200, 210]
TALL = [300, 200, 80, 60]  # x, y, width, height; inverted as corners


def picture(size=SIZE):
    return Image.linear_gradient("L").resize(size).convert("RGB")


@pytest.fixture
def folder(tmp_path):
    picture().save(tmp_path / "p.png")
    return tmp_path


def encoded(size=SIZE):
    written = io.BytesIO()
    picture(size).save(written, "PNG")
    return written.getvalue()


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    return path


def boxes_of(rows):
    return {phrase["text"]: phrase["boxes"] for row in rows for phrase in row["phrases"]}


def assert_is_box(found, box=BOX):
    assert np.abs(np.array(found) - [box]).max() < 2e-3


# Formats of tools


def coco(place, name="instances.json", **more):
    whole = {
        "images": [{"id": 7, "file_name": "p.png", "width": 400, "height": 300}],
        "annotations": [{"id": 1, "image_id": 7, "category_id": 18, "bbox": XYWH, "area": 100.0, **more}],
        "categories": [{"id": 0, "name": "things"}, {"id": 18, "name": "dog"}],
    }
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_text(json.dumps(whole))
    return place / name


def test_coco_in_folders_of_roboflow(tmp_path):
    for split in ("train", "valid"):
        picture_folder = tmp_path / split
        coco(picture_folder, "_annotations.coco.json")
        picture().save(picture_folder / "p.png")
    rows = grounded_rows(tmp_path, split="val")
    assert [row["split"] for row in rows] == ["validation"]
    assert_is_box(boxes_of(rows)["dog"])
    assert rows.report.convention == "xywh pixels"
    assert len(list(grounded_rows(tmp_path))) == 2


def test_coco_with_pictures_elsewhere(tmp_path):
    path = coco(tmp_path, "annotations/instances_val2017.json")
    (tmp_path / "val2017").mkdir()
    picture().save(tmp_path / "val2017" / "p.png")
    with pytest.raises(DataError, match=r"p\.png.*images="):
        list(grounded_rows(path))
    assert_is_box(boxes_of(grounded_rows(path, images=tmp_path / "val2017"))["dog"])


@pytest.mark.parametrize("key", ["images", "categories"])
def test_coco_with_an_id_twice(key, folder):
    path = coco(folder)
    whole = json.loads(path.read_text())
    whole[key].append(dict(whole[key][-1]))
    path.write_text(json.dumps(whole))
    assert_is_box(boxes_of(grounded_rows(path))["dog"])  # the same element again means nothing else
    whole[key].append({**whole[key][-1], "name": "cat", "file_name": "q.png"})
    path.write_text(json.dumps(whole))
    with pytest.raises(DataError, match=rf"{key}, element {len(whole[key]) - 1}.*twice"):
        grounded_rows(path)


def test_coco_of_a_smaller_copy_of_the_picture(tmp_path):
    path = coco(tmp_path)
    picture((200, 150)).save(tmp_path / "p.png")
    assert_is_box(boxes_of(grounded_rows(path))["dog"])


def test_coco_with_words_of_a_caption_and_no_classes(folder):
    path = coco(folder, tokens_positive=[[4, 13]])
    whole = json.loads(path.read_text())
    whole["images"][0]["caption"] = "see brown dog"
    whole["categories"] = []
    del whole["annotations"][0]["category_id"]
    path.write_text(json.dumps(whole))
    assert_is_box(boxes_of(grounded_rows(path))["brown dog"])


def test_coco_with_sentences_and_spans(folder):
    assert_is_box(boxes_of(grounded_rows(coco(folder, caption="the brown dog")))["the brown dog"])
    path = coco(folder, tokens_positive=[[4, 9], [10, 13]])
    whole = json.loads(path.read_text())
    whole["images"][0]["caption"] = "see brown dog"
    path.write_text(json.dumps(whole))
    assert_is_box(boxes_of(grounded_rows(path))["brown dog"])


YOLO = {
    "split first": ("train/images", "train/labels", "../train/images"),
    "images first": ("images/train", "labels/train", "images/train"),
    "flat": ("images", "labels", None),
    "a list of files": ("images/train", "labels/train", "train.txt"),
}


@pytest.mark.parametrize("layout", YOLO)
def test_yolo(layout, tmp_path):
    images, labels, place = YOLO[layout]
    for name in (images, labels):
        (tmp_path / name).mkdir(parents=True)
    picture().save(tmp_path / images / "a.b.png")
    (tmp_path / labels / "a.b.txt").write_text("1 0.35 0.55 0.5 0.7\n0 0.1 0.2 0.6 0.2 0.6 0.9 0.1 0.9\n")
    (tmp_path / "train.txt").write_text("./images/train/a.b.png\n")
    names = "names:\n  0: hydrant\n  1: letter box\n" if layout == "images first" else "names: [hydrant, letter box]\n"
    (tmp_path / "data.yaml").write_text(f"train: {place}\n{names}" if place else names)
    rows = grounded_rows(tmp_path, split=None if layout == "flat" else "train")
    found = boxes_of(rows)
    assert_is_box(found["letter box"])
    assert_is_box(found["hydrant"])
    assert rows.report.convention == "cxcywh 0..1"


def test_yolo_below_the_working_folder(tmp_path, monkeypatch):
    test_yolo("flat", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert_is_box(boxes_of(grounded_rows("."))["letter box"])


def test_a_file_that_may_be_cut_is_said_once(folder, caplog):
    path = write_lines(folder / "rows.jsonl", [{"image": "p.png", "text": "the dog", "bbox": TALL}])
    path.write_text(path.read_text().rstrip("\n"))
    rows = grounded_rows(path, boxes="xywh pixels")
    assert len(list(rows)) == len(list(rows)) == 1
    assert caplog.text.count("has no end") == 1


def test_two_points_with_scores_are_no_corners_of_a_box(folder):
    points = [{"x": 300, "y": 200, "score": 0.9}, {"x": 380, "y": 260, "score": 0.8}]
    path = write_lines(folder / "rows.jsonl", [{"image": "p.png", "text": "the dog", "bbox": points}])
    found = boxes_of(grounded_rows(path))["the dog"]
    assert np.abs(np.array(found) - [[0.75, 2 / 3] * 2, [0.95, 2.6 / 3] * 2]).max() < 2e-3


@pytest.mark.parametrize("layout", ["VOC", "Roboflow"])
def test_pascal_voc(layout, tmp_path):
    xml, images = ("Annotations", "JPEGImages") if layout == "VOC" else ("train", "train")
    for folder in {xml, images}:
        (tmp_path / folder).mkdir()
    picture().save(tmp_path / images / "000001.jpg")
    (tmp_path / xml / "000001.xml").write_text(
        "<annotation><filename>old_name.jpg</filename><size><width>400</width><height>300</height></size><object><name>"
        "dog</name><bndbox><xmin>40</xmin><ymin>60</ymin><xmax>240</xmax><ymax>270</ymax></bndbox></object></annotation>"
    )
    rows = grounded_rows(tmp_path)
    assert_is_box(boxes_of(rows)["dog"])
    assert rows.report.convention == "xyxy pixels"


SHAPES = {
    "a rectangle": {"points": [[240, 60], [40, 270]], "shape_type": "rectangle"},
    "a polygon": {"points": [[40, 70], [130, 60], [240, 150], [90, 270]], "shape_type": "polygon"},
}


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("apart", [False, True])
def test_labelme(kind, apart, tmp_path):
    labels = tmp_path / "labels" if apart else tmp_path
    labels.mkdir(exist_ok=True)
    picture().save(tmp_path / "p.jpg")
    shapes = [
        {"label": "dog", **SHAPES[kind]},
        {"label": "ball", "points": [[10, 20], [30, 40], [20, 50]], "shape_type": "polygon"},
        {"label": "nose", "points": [[50, 60]], "shape_type": "point"},
    ]
    told = {"imagePath": "..\\p.jpg", "imageData": None, "imageWidth": 400, "imageHeight": 300, "shapes": shapes}
    (labels / "p.json").write_text(json.dumps(told))
    rows = grounded_rows(labels, images=tmp_path)
    boxes = boxes_of(rows)
    assert_is_box(boxes["dog"])
    assert boxes["ball"][0] == pytest.approx([10 / 400, 20 / 300, 30 / 400, 50 / 300])
    assert boxes["nose"][0] == pytest.approx([50 / 400, 60 / 300] * 2)
    assert rows.report.convention == "xyxy pixels"
    shapes[1]["points"] = [[1, 2, 3]] * 2
    (labels / "p.json").write_text(json.dumps(told))
    with pytest.raises(DataError, match="object 1"):
        grounded_rows(labels, images=tmp_path)


def task(value, kind="rectanglelabels", **more):
    region = {"id": "r", "type": kind, "original_width": 400, "original_height": 300, "value": value, **more}
    return {"id": 1, "data": {"image": "/data/upload/3/0a1b2c3d-p.png"}, "annotations": [{"result": [region]}]}


PERCENT = {"x": 10.0, "y": 20.0, "width": 50.0, "height": 70.0}
TASKS = {
    "a rectangle": task({**PERCENT, "rotation": 0, "rectanglelabels": ["dog"]}),
    "a turned rectangle": task(
        {"x": 10.0, "y": 90.0, "width": 52.5, "height": 200 / 3, "rotation": -90, "rectanglelabels": ["dog"]}
    ),
    "a polygon": task({"points": [[10, 20], [60, 50], [30, 90]], "polygonlabels": ["dog"]}, "polygonlabels"),
    "an ellipse": task({"x": 35, "y": 55, "radiusX": 25, "radiusY": 35, "ellipselabels": ["dog"]}, "ellipselabels"),
    "the name apart": {**task({}), "annotations": [{"result": [
        {"id": "r", "type": "rectangle", "value": {**PERCENT, "rotation": 0}},
        {"id": "r", "type": "textarea", "value": {**PERCENT, "text": ["dog"]}}]}]},
    "short": {"id": 1, "image": "p.png", "label": [{**PERCENT, "rotation": 0, "rectanglelabels": ["dog"]}]},
}  # fmt: skip


@pytest.mark.parametrize("case", TASKS, ids=str)
def test_label_studio(case, folder):
    path = folder / "export.json"
    path.write_text(json.dumps([TASKS[case]]))
    rows = grounded_rows(path)
    assert_is_box(boxes_of(rows)["dog"])
    assert rows.report.convention == "xywh 0..100"


def test_a_turned_rectangle_ends_with_the_picture(folder):
    """A square of 100 x 2**0.5 pixels, turned by 45 degrees about the corner of the picture."""
    turned = {"x": 0, "y": 0, "width": 25 * 2**0.5, "height": 100 / 3 * 2**0.5, "rotation": 45}
    (folder / "export.json").write_text(json.dumps([task({**turned, "rectanglelabels": ["dog"]})]))
    assert_is_box(boxes_of(grounded_rows(folder / "export.json"))["dog"], [0, 0, 0.25, 2 / 3])


def test_an_image_folder_with_splits_and_objects(tmp_path):
    for split, name in (("train", "a"), ("test", "b")):
        objects = {"bbox": [TALL], "categories": [0], "area": [4800.0], "id": [1]}
        write_lines(tmp_path / split / "metadata.jsonl", [{"file_name": f"{name}.png", "objects": objects}])
        picture().save(tmp_path / split / f"{name}.png")
    rows = grounded_rows(tmp_path, {"names": ["dog"]}, split="test")
    assert [row["image_id"] for row in rows] == ["b"]
    assert_is_box(boxes_of(rows)["dog"], [0.75, 2 / 3, 0.95, 0.8667])


def test_an_image_folder_with_two_pictures_a_row(tmp_path):
    phrases = [{"text": "the dog", "boxes": [[0.1, 0.2, 0.6, 0.9]], "image": 1}]
    row = {"file_name": "a.png", "second_file_name": "b.png", "text": "see the dog", "phrases": phrases}
    write_lines(tmp_path / "metadata.jsonl", [row])
    for name in "ab":
        picture().save(tmp_path / f"{name}.png")
    (row,) = grounded_rows(tmp_path)
    assert len(row["images"]) == 2
    assert row["phrases"][0]["image"] == 1


def test_one_json_file_beside_each_picture(tmp_path):
    (tmp_path / "attributes").mkdir()
    picture().save(tmp_path / "attributes" / "sa_1.jpg")
    record = {"target_object": ["dog"], "bbox": [XYWH], "question": "What colour is the dog?", "options": ["red"]}
    (tmp_path / "attributes" / "sa_1.json").write_text(json.dumps(record))
    assert_is_box(boxes_of(grounded_rows(tmp_path))["dog"])


def test_files_of_several_splits(folder):
    for name in ("refcoco_testA", "refcoco_val"):
        row = {"image": "p.png", "text": f"the dog of {name}", "bbox": TALL}
        write_lines(folder / "data" / f"{name}.jsonl", [row])
    rows = grounded_rows(str(folder / "data" / "*.jsonl"), split="testA", images=folder)
    assert [*boxes_of(rows)] == ["the dog of refcoco_testA"]
    with pytest.raises(DataError, match=r"testA.*validation"):
        grounded_rows(folder / "data", split="testB", images=folder)


# Types of values


def row_of(**columns):
    return {"image": encoded(), "text": "the dog", "bbox": TALL, **columns}


def as_parquet(tmp_path, rows, **types):
    path = tmp_path / "rows.parquet"
    columns = {name: pa.array([row[name] for row in rows], types.get(name)) for name in rows[0]}
    pq.write_table(pa.table(columns), path)
    return path


TYPES = {
    "bytes": row_of(),
    "a struct of bytes and path": row_of(image={"bytes": encoded(), "path": "p.png"}),
    "a list of pictures": row_of(image=[{"bytes": encoded(), "path": None}]),
    "base64": row_of(image=base64.b64encode(encoded() * 1).decode()),
    "a data URI": row_of(image="data:image/png;base64," + base64.b64encode(encoded()).decode()),
    "whole numbers": row_of(bbox=[*map(int, TALL)], image_id=17),
    "decimals": row_of(bbox=[Decimal(each) for each in TALL]),
    "a text of a box": row_of(bbox=str(TALL)),
    "a text of numbers": row_of(bbox=" ".join(map(str, TALL))),
    "texts of numbers": row_of(bbox=[*map(str, TALL)]),
    "a list of boxes": row_of(bbox=[TALL]),
    "a list of texts": row_of(text=["the dog"]),
}


@pytest.mark.parametrize("case", TYPES, ids=str)
def test_types_in_parquet(case, tmp_path):
    rows = grounded_rows(as_parquet(tmp_path, [TYPES[case]]), boxes="xywh pixels")
    assert_is_box(boxes_of(rows)["the dog"], [0.75, 2 / 3, 0.95, 0.8667])
    (row,) = rows
    assert row["image"].mode == "RGB"
    assert row["image"].size == SIZE
    assert isinstance(row["image_id"], str)


NESTED = {
    "samples": {"samples": [{"sentences": ["the dog"], "bbox": TALL, "label": "dog"}]},
    "regions": {"regions": [{"phrase": "the dog", "x": 300, "y": 200, "width": 80, "height": 60}]},
    "boxes and labels": {"bboxes": [TALL], "labels": ["the dog"]},
    "entities": {"caption": "see the dog", "entities": [{"text": "the dog", "bbox": TALL}]},
}


@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.parametrize("case", NESTED, ids=str)
def test_nested_columns_are_lists_or_texts_of_json(case, as_text, tmp_path):
    row = {
        key: json.dumps(each) if as_text and not isinstance(each, str) else each for key, each in NESTED[case].items()
    }
    rows = grounded_rows(as_parquet(tmp_path, [{"image": encoded(), **row}]))
    assert_is_box(boxes_of(rows)["the dog"], [0.75, 2 / 3, 0.95, 0.8667])


def test_a_class_beside_a_box(tmp_path):
    names = datasets.ClassLabel(names=["cat", "dog"])
    box = datasets.List(datasets.Value("float32"))
    features = datasets.Features({"image": datasets.Image(), "label": names, "bbox": box})
    data = datasets.Dataset.from_list([{"image": picture(), "label": 1, "bbox": TALL}], features=features)
    data.to_parquet(tmp_path / "rows.parquet")
    for source in (data, tmp_path / "rows.parquet"):
        assert_is_box(boxes_of(grounded_rows(source))["dog"], [0.75, 2 / 3, 0.95, 0.8667])


def test_values_of_lists_of_rows(tmp_path):
    given = [
        {"image": picture(), "text": np.str_("the dog"), "bbox": np.array(TALL, np.float32)},
        {"image": np.asarray(picture()), "text": "the cat", "bbox": [np.int64(each) for each in TALL]},
    ]
    found = boxes_of(grounded_rows(given))
    assert found.keys() == {"the dog", "the cat"}
    assert_is_box(found["the cat"], [0.75, 2 / 3, 0.95, 0.8667])


OBJECT = {"bbox": datasets.List(datasets.Value("float32")), "category": datasets.ClassLabel(names=["cat", "dog"])}
FEATURES = datasets.Features({"image": datasets.Image(), "objects": datasets.List(OBJECT)})


@pytest.mark.parametrize("form", ["Dataset", "numpy", "torch", "IterableDataset", "DatasetDict", "Parquet", "disk"])
def test_data_sets(form, tmp_path):
    rows = [{"image": picture(), "objects": [{"bbox": TALL, "category": 1}]}]
    data = datasets.Dataset.from_list(rows, features=FEATURES)
    path = tmp_path / "rows.parquet"
    data.to_parquet(path)
    source = {
        "Dataset": data,
        "numpy": data.with_format("numpy"),
        "torch": data.with_format("torch"),
        "IterableDataset": data.to_iterable_dataset(),
        "DatasetDict": datasets.DatasetDict(testA=data, testB=data),
        "Parquet": path,
        "disk": tmp_path / "disk",
    }[form]
    data.save_to_disk(tmp_path / "disk")
    rows = grounded_rows(source, split="testB" if form == "DatasetDict" else None)
    for _ in range(2):
        (row,) = rows
        assert row["image"].size == SIZE
        assert row["phrases"][0]["text"] == "dog"
    assert_is_box(boxes_of(rows)["dog"], [0.75, 2 / 3, 0.95, 0.8667])


def test_a_stream_is_not_read_whole():
    seen = []

    def rows():
        for number in range(10_000):
            seen.append(number)
            yield {"image": picture((40, 30)), "text": "the dog", "bbox": [30, 20, 8, 6]}

    stream = datasets.IterableDataset.from_generator(rows)
    found = grounded_rows(stream, max_rows=3)
    assert len(list(found)) == 3
    assert found.report.rows == 3
    assert len(set(seen)) < 1000
    assert not found.report.complete


def test_a_data_set_without_decoded_pictures(tmp_path):
    rows = grounded_rows(as_parquet(tmp_path, [row_of()])).decode(False)
    (row,) = rows
    assert isinstance(row["image"], bytes)
    assert row["width"] == 400


def test_csv_with_named_columns(folder):
    with open(folder / "rows.csv", "w", newline="") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerows([["pic", "what", "l", "t", "r", "b"], ["p.png", "the dog", *XYXY]])
    columns = {"image": "pic", "text": "what", "boxes": ["l", "t", "r", "b"]}
    with pytest.raises(DataError, match="no column left"):
        grounded_rows(folder / "rows.csv", {**columns, "boxes": ["left", "t", "r", "b"]})
    assert_is_box(boxes_of(grounded_rows(folder / "rows.csv", columns))["the dog"])


def test_columns_that_are_named_win(tmp_path):
    row = row_of(answer="the cat", box=[0, 0, 1, 1], gt=TALL)
    rows = grounded_rows(as_parquet(tmp_path, [row]), {"text": "answer", "boxes": "gt"})
    assert_is_box(boxes_of(rows)["the cat"], [0.75, 2 / 3, 0.95, 0.8667])


def test_a_turned_photograph(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    picture((300, 400)).save(tmp_path / "p.jpg", exif=exif)
    rows = grounded_rows(write_lines(tmp_path / "rows.jsonl", [{"image": "p.jpg", "text": "the dog", "bbox": TALL}]))
    (row,) = rows
    assert row["image"].size == (row["width"], row["height"]) == SIZE
    assert_is_box(row["phrases"][0]["boxes"], [0.75, 2 / 3, 0.95, 0.8667])


# What must be said


def test_the_same_name_with_two_meanings(folder):
    """`bbox` is x, y, width, height in lmms-lab/RefCOCO and corners in jxu124/refcoco; both would fit as the other."""
    common = {"image": "p.png", "bbox": [40, 60, 150, 120]}
    ours = write_lines(folder / "a.jsonl", [{**common, "question_id": "1", "question": "?", "answer": ["the dog"]}])
    theirs = write_lines(folder / "b.jsonl", [{**common, "ref_id": 1, "sentences": ["x"], "captions": ["the dog"]}])
    assert_is_box(boxes_of(grounded_rows(ours))["the dog"], [0.1, 0.2, 190 / 400, 180 / 300])
    assert_is_box(boxes_of(grounded_rows(theirs))["the dog"], [0.1, 0.2, 150 / 400, 120 / 300])


SMALL = [40, 60, 150, 120]
TURNS = [{"from": "human", "value": "<image>\nFind the dog."}, {"from": "gpt", "value": f'{{"bbox_2d": {SMALL}}}'}]
LIKE_A_SET = {
    "answers that are no RefCOCO": {"image": "p.png", "question": "?", "answer": ["the dog"], "bbox": SMALL},
    "a conversation as a text that is no UGround": {"image": "p.png", "conversations": json.dumps(TURNS)},
    "a point and the size of its picture": {"image": "p.png", "text": "the dog", "x": 0.3, "y": 0.5, "width": 400,
                                            "height": 300},
    "a caption that is not of Ref-L4": {"image": "p.png", "caption": "the dog", "bbox": SMALL, "bbox_id": 3},
    "samples that are not of RefCOCO-M": {"image": "p.png", "samples": [{"sentence": "the dog", "bbox": SMALL}]},
    "targets that are not of V*": {"image": "p.png", "question": "Where is the dog?", "target_object": ["dog"],
                                     "bbox": [SMALL]},
    "two names and then three boxes": {
        "images": ["p.png"],
        "messages": [{"role": "user", "content": "<image>Find <ref-object> and <ref-object>."},
                     {"role": "assistant", "content": "<bbox><bbox><bbox>"}],
        "objects": {"ref": ["the dog", "the cat"], "bbox": [BOX, BOX, BOX], "bbox_type": "norm1"}},
    "one box and two pictures": {"images": ["p.png", "p.png"], "text": "the dog", "bbox": TALL},
    "one box and a turn with two pictures": {"images": ["p.png", "p.png"], "messages": [
        {"role": "user", "content": "<image><image>Find the dog."},
        {"role": "assistant", "content": "<box>(100,200),(600,900)</box>"}]},
}  # fmt: skip


@pytest.mark.parametrize("case", LIKE_A_SET, ids=str)
def test_rows_that_only_look_like_those_of_a_set_are_asked_about(case, folder):
    with pytest.raises(DataError):
        grounded_rows(write_lines(folder / "rows.jsonl", [LIKE_A_SET[case]]))


def test_each_turn_has_its_own_picture(tmp_path):
    for name in "pq":
        picture().save(tmp_path / f"{name}.png")
    talk = [{"role": "user", "content": "<image>Find the dog."},
            {"role": "assistant", "content": "<box>(100,200),(600,900)</box>"},
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Find the cat."}]},
            {"role": "assistant", "content": "<box>(0,0),(500,500)</box>"}]  # fmt: skip
    row = {"images": ["p.png", "q.png"], "messages": talk}
    (read,) = grounded_rows(write_lines(tmp_path / "rows.jsonl", [row]))
    assert [(each["text"], each["image"]) for each in read["phrases"]] == [("the dog", 0), ("the cat", 1)]


def test_a_list_of_texts_beside_a_list_of_boxes(folder):
    places = [[0.1, 0.1, 0.2, 0.2], [0.5, 0.6, 0.55, 0.65], [0.8, 0.8, 0.9, 0.9]]
    row = {"image": "p.png", "text": ["the dog", "the cat", "the dog"], "boxes": places}
    rows = list(grounded_rows(write_lines(folder / "rows.jsonl", [row]), boxes="xyxy 0..1"))
    assert [(each["text"], each["phrases"][0]["boxes"]) for each in rows] == [
        (text, [place]) for text, place in zip(row["text"], places, strict=True)
    ]


def test_numbers_in_brackets_within_talk_are_no_points(folder):
    turns = [{"from": "human", "value": "<image>\nThe score?"}, {"from": "gpt", "value": "It was (3, 4)."}]
    (row,) = grounded_rows(write_lines(folder / "rows.jsonl", [{"image": "p.png", "conversations": turns}]))
    assert row["phrases"] == []


def test_an_image_folder_with_names_in_another_column(folder):
    write_lines(folder / "metadata.jsonl", [{"front_file_name": "p.png", "text": "the dog", "bbox": TALL}])
    assert_is_box(boxes_of(grounded_rows(folder))["the dog"], [0.75, 2 / 3, 0.95, 0.8667])


def test_yolo_poses(folder):
    (folder / "p.txt").write_text("0 0.35 0.55 0.5 0.7 0.3 0.3 2 0.4 0.4 1\n")
    (folder / "data.yaml").write_text("names: [dog]\nkpt_shape: [2, 3]\n")
    assert_is_box(boxes_of(grounded_rows(folder))["dog"])


def test_a_question_is_asked(folder):
    path = write_lines(folder / "a.jsonl", [{"image": "p.png", "text": "the dog", "bbox": [40, 60, 150, 120]}])
    with pytest.raises(UnclearBoxes) as error:
        grounded_rows(path)
    assert [str(each) for each in error.value.readings] == ["xyxy pixels", "xywh pixels"]
    for reading in error.value.readings:
        assert boxes_of(grounded_rows(path, boxes=str(reading)))
    assert str(grounded_rows(path, boxes="xywh").report.convention) == "xywh pixels"
    with pytest.raises(DataError, match="xwyh"):
        grounded_rows(path, boxes="xwyh pixels")


def test_a_wrong_box_late_in_the_rows_is_counted(folder):
    rows = [{"image": "p.png", "text": f"dog {n}", "bbox": TALL} for n in range(300)]
    rows[250]["bbox"] = [500, 400, 20, 20]
    found = grounded_rows(write_lines(folder / "a.jsonl", rows), boxes="xywh pixels")
    kept = list(found)
    assert kept[250]["phrases"][0]["boxes"] == []
    assert sum(found.report.dropped.values()) == 1
    assert "line 251" in next(iter(found.report.examples.values()))[0]


# Damaged and odd rows: an error that names file, row and value, or the right reading


GOOD = {"image": "p.png", "text": "the dog", "bbox": TALL}
OWN = {"image": "p.png", "text": "the dog", "phrases": [{"text": "the dog", "boxes": [BOX]}]}
CHAT = {
    "image": "p.png",
    "messages": [
        {"role": "user", "content": "Where is the dog?"},
        {"role": "assistant", "content": "<box>(100,200),(600,900)</box>"},
    ],
}
SWIFT = {"messages": [{"role": "user", "content": "<image>Find <ref-object>."},
                      {"role": "assistant", "content": "<bbox>"}], "images": ["p.png"],
         "objects": {"ref": ["the dog"], "bbox": [[0.1, 0.2, 0.6, 0.9]], "bbox_type": "norm1"}}  # fmt: skip
GRIT = {"image": "p.png", "caption": "the dog", "noun_chunks": [[0, 7, *BOX, 0.9]]}
DETECTION = {"image": "p.png", "objects": {"bbox": [TALL], "category": ["dog"]}}


def own(**values):
    return {**OWN, "phrases": [{**OWN["phrases"][0], **values}]}


def swift(**values):
    return {**SWIFT, "objects": {**SWIFT["objects"], **values}}


DAMAGED = {
    "three numbers": {**GOOD, "bbox": [1, 2, 3]},
    "five numbers": {**GOOD, "bbox": [1, 2, 3, 4, 5]},
    "no numbers": {**GOOD, "bbox": ["a", "b", "c", "d"]},
    "a null in a box": {**GOOD, "bbox": [1, None, 3, 4]},
    "truth values": {**GOOD, "bbox": [True, False, True, True]},
    "not finite": {**GOOD, "bbox": [1, 2, float("nan"), 4]},
    "infinite": {**GOOD, "bbox": [1, 2, 1e400, 4]},
    "a word as a box": {**GOOD, "bbox": "left"},
    "cut JSON in a box": {**GOOD, "bbox": "[1, 2, 3"},
    "an object without sides": {**GOOD, "bbox": {"a": 1}},
    "a number as a text": {**GOOD, "text": 5},
    "an empty text": {**GOOD, "text": " "},
    "a negative width": {**GOOD, "width": -4, "height": 300},
    "a width that is a word": {**GOOD, "width": "wide", "height": 300},
    "a size that is another picture's": {**GOOD, "width": 300, "height": 400},
    "no picture file": {**GOOD, "image": "rows.jsonl"},
    "an unknown key of a phrase": own(bboxs=[BOX]),
    "a phrase without boxes": {**OWN, "phrases": [{"text": "the dog"}]},
    "words that are not there": own(text="the cat"),
    "words that occur twice": {**own(), "text": "the dog and the dog"},
    "characters outside": own(start=0, end=99),
    "characters of other words": own(start=1, end=7),
    "a start alone": own(start=0),
    "a text that the row does not have": own(sentence=2),
    "a picture that the row does not have": own(image=1),
    "a weight that is a word": own(weight="high"),
    "own boxes in pixels": own(boxes=[XYXY]),
    "a phrase that is a word": {**OWN, "phrases": ["the dog"]},
    "an unknown role": {**CHAT, "messages": [{"role": "narrator", "content": "x"}]},
    "no content": {**CHAT, "messages": [{"role": "user"}]},
    "no messages": {**CHAT, "messages": []},
    "an unknown part": {**CHAT, "messages": [{"role": "user", "content": [{"type": "video"}]}]},
    "a box beyond its scale": {**CHAT, "messages": [
        CHAT["messages"][0], {"role": "assistant", "content": "<box>(100,200),(600,1900)</box>"}]},
    "too few boxes": swift(bbox=[]),
    "too few names": swift(ref=[]) | {"messages": [{"role": "user", "content": "<ref-object> <ref-object>"}]},
    "an unknown bbox_type": swift(bbox_type="norm7"),
    "image ids of another length": swift(image_id=[0, 1]),
    "GRIT, too few numbers": {**GRIT, "noun_chunks": [[0, 7, 0.1]]},
    "GRIT, characters outside": {**GRIT, "noun_chunks": [[0, 70, *BOX, 0.9]]},
    "GRIT, boxes in pixels": {**GRIT, "noun_chunks": [[0, 7, *XYXY, 0.9]]},
    "lists of several lengths": {**DETECTION, "objects": {"bbox": [TALL, TALL], "category": ["dog"]}},
    "no name": {**DETECTION, "objects": {"bbox": [TALL]}},
    "objects that are a number": {**DETECTION, "objects": [1]},
    "unknown columns": {"a": 1, "b": 2},
    "no column of boxes": {"image": "p.png", "text": "the dog", "where": [1, 2, 3, 4]},
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED, ids=str)
def test_a_damaged_row(case, folder):
    path = write_lines(folder / "rows.jsonl", [DAMAGED[case]])
    with pytest.raises(DataError) as error:
        list(grounded_rows(path))
    message = str(error.value)
    assert str(path) in message and ("line 1" in message or "boxes" in message), message


ODD = {
    "a null box": {**GOOD, "bbox": None},
    "an empty list of boxes": {**GOOD, "bbox": []},
    "a null among boxes": {**GOOD, "bbox": [None, TALL]},
    "no object": {**DETECTION, "objects": {"bbox": [], "category": []}},
    "null objects": {**DETECTION, "objects": []},
    "a phrase that means nothing": own(boxes=[]),
    "a null key": own(entity=None),
    "no phrase": {**OWN, "phrases": []},
    "a conversation without boxes": {**CHAT, "messages": CHAT["messages"][:1]},
    "a null chunk": {**GRIT, "noun_chunks": None, "ref_exps": []},
    "an absolute path": {**GOOD, "image": "ABSOLUTE"},
    "a path of another machine": {**GOOD, "image": "/home/someone/data/p.png"},
    "a file URL": {**GOOD, "image": "file://ABSOLUTE"},
}


@pytest.mark.parametrize("case", ODD, ids=str)
def test_an_odd_row_is_read(case, folder):
    odd = json.loads(json.dumps(ODD[case]).replace("ABSOLUTE", str(folder / "p.png")))
    kind = {"objects": DETECTION, "phrases": OWN, "messages": CHAT, "noun_chunks": GRIT}
    good = next((row for key, row in kind.items() if key in odd), GOOD)
    rows = grounded_rows(write_lines(folder / "rows.jsonl", [good, odd]))
    assert len(list(rows)) == 2
    assert rows.report.rows == 2


def test_a_picture_that_is_missing_is_counted(folder):
    rows = grounded_rows(write_lines(folder / "rows.jsonl", [GOOD, {**GOOD, "image": "q.png"}]))
    assert len(list(rows)) == 1
    assert rows.report.missing == ["q.png"]
    with pytest.raises(DataError, match=r"q\.png"):
        list(grounded_rows(write_lines(folder / "rows.jsonl", [{**GOOD, "image": "q.png"}])))


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": }', "[[1, 2]]", "null"])
def test_a_damaged_file(content, tmp_path):
    for name in ("rows.jsonl", "rows.json"):
        path = tmp_path / name
        path.write_text(content)
        with pytest.raises(ValueError, match=name):
            list(grounded_rows(path))


def test_damaged_files_of_tools(tmp_path):
    for name in ("rows.parquet", "rows.csv"):
        (tmp_path / name).write_bytes(b"\xff\x00PAR1")
        with pytest.raises(DataError, match=name):
            list(grounded_rows(tmp_path / name))
    yolo = tmp_path / "yolo"
    (yolo / "images").mkdir(parents=True)
    picture().save(yolo / "images" / "a.png")
    (yolo / "data.yaml").write_text("names: [dog]")
    (yolo / "images" / "a.txt").write_text("0 0.5 0.5 0.1 0.1")
    (yolo / "data.yaml").write_text("names: {}")
    with pytest.raises(DataError, match="names"):
        grounded_rows(yolo)
    (yolo / "data.yaml").write_text("names: [dog]")
    for line in ("7 0.5 0.5 0.1 0.1", "0 0.5 0.5", "dog 0.5 0.5 0.1 0.1", "0 nan 0.5 0.1 0.1", "0 40 60 240 270"):
        (yolo / "images" / "a.txt").write_text(line)
        with pytest.raises(DataError):
            list(grounded_rows(yolo))
    voc = tmp_path / "voc"
    voc.mkdir()
    for content in ("<annotation>", "<annotation><object><name>dog</name></object></annotation>"):
        (voc / "a.xml").write_text(content)
        with pytest.raises(DataError, match=r"a\.xml"):
            list(grounded_rows(voc))


def test_sources_that_are_none(tmp_path):
    for source in (tmp_path, tmp_path / "nothing.json", 5):
        with pytest.raises((DataError, FileNotFoundError)):
            grounded_rows(source)
    with pytest.raises(DataError, match="colour"):
        grounded_rows([GOOD], {"colour": "x"})


def test_captions_without_boxes_are_rows_with_a_word_about_it(folder, caplog):
    row = {"image": "p.png", "caption": ["a dog", "the dog"], "sentids": ["1", "2"], "img_id": "7"}
    rows = grounded_rows(write_lines(folder / "rows.jsonl", [row]))
    assert [(each["captions"], each["phrases"]) for each in rows] == [(["a dog", "the dog"], [])]
    assert "no column of boxes" in caplog.text
    assert "no column of boxes" in str(rows.report)


def test_a_drag_has_two_points(folder):
    turns = [{"from": "human", "value": "<image>drag the dog"}]
    turns += [{"from": "gpt", "value": "drag()", "from_coord": [0.1, 0.2], "to_coord": [0.6, 0.9]}]
    rows = grounded_rows(write_lines(folder / "rows.jsonl", [{"image": "p.png", "conversations": turns}]))
    assert boxes_of(rows) == {"drag the dog": [[0.1, 0.2, 0.1, 0.2], [0.6, 0.9, 0.6, 0.9]]}


def test_a_long_field_of_a_csv_is_read_and_leaves_the_limit_of_the_process(tmp_path):
    before = csv.field_size_limit()
    path = tmp_path / "rows.csv"
    path.write_text("image,text,bbox\n" + f'a.png,"{"x" * (before + 1)}","[0.1, 0.2, 0.3, 0.4]"\n')
    read = _csv(path)
    assert len(next(read)[2]["text"]) > before
    assert csv.field_size_limit() == before


def test_a_picture_that_cannot_be_read_is_left_out_and_counted(tmp_path, caplog):
    for name in "abc":
        Image.new("RGB", (60, 40)).save(tmp_path / f"{name}.png")
    (tmp_path / "b.png").write_bytes((tmp_path / "b.png").read_bytes()[:60])
    rows = [{"image": f"{name}.png", "text": "a ball", "bbox": [0.1, 0.1, 0.5, 0.6]} for name in "abc"]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = grounded_rows(tmp_path / "rows.jsonl", boxes="xyxy 0..1")
    assert [row["image_id"] for row in found] == ["a", "c"]
    assert found.report.dropped["the picture cannot be read"] == 1
    assert "b.png" in str(found.report.examples)
    (tmp_path / "rows.jsonl").write_text(json.dumps(rows[1]))
    with pytest.raises(DataError, match=r"b\.png"):
        list(grounded_rows(tmp_path / "rows.jsonl", boxes="xyxy 0..1"))


@pytest.mark.parametrize(("scale", "size"), [(100, (640, 480)), (1000, (4000, 3000))])
def test_boxes_that_may_be_shares_of_much_larger_pictures_are_asked_about(tmp_path, scale, size):
    Image.new("RGB", size).save(tmp_path / "a.png")

    def read(given, **said):
        rows = [{"image": "a.png", "text": "a ball", "bbox": [each * scale / 100 for each in box]} for box in given]
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        return grounded_rows(tmp_path / "rows.jsonl", **said)

    small = [[60, 10, 90, 30], [70, 50, 80, 60], [50, 60, 95, 70], [80, 20, 99, 40]]
    with pytest.raises(UnclearBoxes) as caught:
        read(small)
    assert {"xyxy pixels", f"xyxy 0..{scale}"} < {str(each) for each in caught.value.readings}
    with pytest.raises(UnclearBoxes) as caught:
        read(small, boxes="xyxy")
    assert {str(each) for each in caught.value.readings} == {"xyxy pixels", f"xyxy 0..{scale}"}
    assert read(small, boxes="xyxy pixels").report.convention == "xyxy pixels"
    assert read([*small, [60, 10, 180, 30]], boxes="xyxy").report.convention == "xyxy pixels"  # beyond the range
    assert next(iter(read(small, boxes=f"xyxy 0..{scale}")))["phrases"][0]["boxes"][0][2] == pytest.approx(0.9)

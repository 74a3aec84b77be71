# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Files, folders and data sets as sources of rows: formats of tools, types of values, damaged and odd rows."""

import base64
import csv
import io
import json
import re
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
TALL = [300, 200, 80, 60]  # x, y, width, height; inverted as corners
TALL_BOX = [0.75, 2 / 3, 0.95, 2.6 / 3]
GOOD = {"image": "p.png", "text": "the dog", "bbox": TALL}


def picture(size=SIZE):
    return Image.linear_gradient("L").resize(size).convert("RGB")


@pytest.fixture
def folder(tmp_path):
    picture().save(tmp_path / "p.png")
    return tmp_path


def write_lines(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read(folder, *rows, **options):
    return grounded_rows(write_lines(folder / "rows.jsonl", *rows), **options)


def boxes_of(rows):
    return {phrase["text"]: phrase["boxes"] for row in rows for phrase in row["phrases"]}


def assert_box(rows, text, box=BOX):
    np.testing.assert_allclose(boxes_of(rows)[text], [box], atol=2e-3)


# Formats of tools

COCO = """{"images": [{"id": 7, "file_name": "p.png", "width": 400, "height": 300, "caption": "see brown dog"}],
    "annotations": [{"id": 1, "image_id": 7, "category_id": 18, "bbox": [40, 60, 200, 210], "area": 100.0}],
    "categories": [{"id": 0, "name": "things"}, {"id": 18, "name": "dog"}]}"""


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_coco_in_folders_of_roboflow(tmp_path):
    for split in ("train", "valid"):
        write(tmp_path / split / "_annotations.coco.json", COCO)
        picture().save(tmp_path / split / "p.png")
    rows = grounded_rows(tmp_path, split="val")
    assert [row["split"] for row in rows] == ["validation"]
    assert_box(rows, "dog")
    assert rows.report.convention == "xywh pixels"
    assert len(list(grounded_rows(tmp_path))) == 2


def test_coco_with_pictures_elsewhere(tmp_path):
    path = write(tmp_path / "annotations" / "instances_val2017.json", COCO)
    (tmp_path / "val2017").mkdir()
    picture().save(tmp_path / "val2017" / "p.png")
    with pytest.raises(DataError, match=r"p\.png.*images="):
        list(grounded_rows(path))
    assert_box(grounded_rows(path, images=tmp_path / "val2017"), "dog")


@pytest.mark.parametrize("key", ["images", "categories"])
def test_coco_with_an_id_twice(key, folder):
    content = json.loads(COCO)
    content[key].append(content[key][-1])
    path = write(folder / "instances.json", json.dumps(content))
    assert_box(grounded_rows(path), "dog")  # the same element again means nothing else
    content[key][-1] = {**content[key][-1], "name": "cat", "file_name": "q.png"}
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=rf"{key}, element {len(content[key]) - 1}.*twice"):
        grounded_rows(path)


def test_coco_of_a_smaller_copy_of_the_picture(tmp_path):
    picture((200, 150)).save(tmp_path / "p.png")
    assert_box(grounded_rows(write(tmp_path / "instances.json", COCO)), "dog")


@pytest.mark.parametrize(
    "field, replacement, words",
    [
        ('"area": 100.0', '"caption": "the brown dog"', "the brown dog"),
        ('"area": 100.0', '"tokens_positive": [[4, 9], [10, 13]]', "brown dog"),
        ('"category_id": 18', '"tokens_positive": [[4, 13]]', "brown dog"),
    ],
)
def test_coco_with_sentences_and_spans(field, replacement, words, folder):
    path = write(folder / "instances.json", COCO.replace(field, replacement))
    assert_box(grounded_rows(path), words)


def test_coco_with_words_of_a_caption_and_no_classes(folder):
    content = json.loads(COCO.replace('"category_id": 18', '"tokens_positive": [[4, 13]]'))
    content["categories"] = []
    assert_box(grounded_rows(write(folder / "instances.json", json.dumps(content))), "brown dog")


YOLO = {
    "split first": ("train/images", "train/labels", "train: ../train/images\nnames: [hydrant, letter box]"),
    "images first": ("images/train", "labels/train", "train: images/train\nnames:\n  0: hydrant\n  1: letter box"),
    "flat": ("images", "labels", "names: [hydrant, letter box]"),
    "a list of files": ("images/train", "labels/train", "train: train.txt\nnames: [hydrant, letter box]"),
}


def write_yolo(folder, layout):
    images, labels, description = YOLO[layout]
    write(folder / labels / "a.b.txt", "1 0.35 0.55 0.5 0.7\n0 0.1 0.2 0.6 0.2 0.6 0.9 0.1 0.9\n")
    (folder / images).mkdir(parents=True)
    picture().save(folder / images / "a.b.png")
    write(folder / "train.txt", "./images/train/a.b.png\n")
    write(folder / "data.yaml", description)


@pytest.mark.parametrize("layout", YOLO)
def test_yolo(layout, tmp_path):
    write_yolo(tmp_path, layout)
    rows = grounded_rows(tmp_path, split=None if layout == "flat" else "train")
    assert_box(rows, "letter box")
    assert_box(rows, "hydrant")
    assert rows.report.convention == "cxcywh 0..1"


def test_yolo_below_the_working_folder(tmp_path, monkeypatch):
    write_yolo(tmp_path, "flat")
    monkeypatch.chdir(tmp_path)
    assert_box(grounded_rows("."), "letter box")


def test_yolo_poses(folder):
    write(folder / "p.txt", "0 0.35 0.55 0.5 0.7 0.3 0.3 2 0.4 0.4 1\n")
    write(folder / "data.yaml", "names: [dog]\nkpt_shape: [2, 3]\n")
    assert_box(grounded_rows(folder), "dog")


def test_a_file_that_may_be_cut_is_said_once(folder, caplog):
    path = write(folder / "rows.jsonl", json.dumps(GOOD))
    rows = grounded_rows(path, boxes="xywh pixels")
    assert len(list(rows)) == len(list(rows)) == 1
    assert caplog.text.count("has no end") == 1


def test_two_points_with_scores_are_no_corners_of_a_box(folder):
    points = [{"x": 300, "y": 200, "score": 0.9}, {"x": 380, "y": 260, "score": 0.8}]
    found = boxes_of(read(folder, {**GOOD, "bbox": points}))["the dog"]
    expected = [[0.75, 2 / 3, 0.75, 2 / 3], [0.95, 2.6 / 3, 0.95, 2.6 / 3]]
    np.testing.assert_allclose(found, expected, atol=2e-3)


VOC = """<annotation><filename>old_name.jpg</filename><size><width>400</width><height>300</height></size>
    <object><name>dog</name><bndbox><xmin>40</xmin><ymin>60</ymin><xmax>240</xmax><ymax>270</ymax></bndbox></object>
    </annotation>"""


@pytest.mark.parametrize("annotations, images", [("Annotations", "JPEGImages"), ("train", "train")])
def test_pascal_voc(annotations, images, tmp_path):
    write(tmp_path / annotations / "000001.xml", VOC)
    (tmp_path / images).mkdir(exist_ok=True)
    picture().save(tmp_path / images / "000001.jpg")
    rows = grounded_rows(tmp_path)
    assert_box(rows, "dog")
    assert rows.report.convention == "xyxy pixels"


LABELME = r"""{"imagePath": "..\\p.jpg", "imageData": null, "imageWidth": 400, "imageHeight": 300, "shapes": [
    {"label": "dog", "points": [[240, 60], [40, 270]], "shape_type": "rectangle"},
    {"label": "fox", "points": [[40, 70], [130, 60], [240, 150], [90, 270]], "shape_type": "polygon"},
    {"label": "hen", "points": [[40, 60], [240, 150], [90, 302]], "shape_type": "polygon"},
    {"label": "nose", "points": [[50, 60]], "shape_type": "point"}]}"""


@pytest.mark.parametrize("place", [".", "labels"])
def test_labelme(place, tmp_path):
    picture().save(tmp_path / "p.jpg")
    path = write(tmp_path / place / "p.json", LABELME)
    rows = grounded_rows(path.parent, images=tmp_path)
    assert_box(rows, "dog")
    assert_box(rows, "fox")
    assert_box(rows, "hen", [0.1, 0.2, 0.6, 1.0])  # ends at the edge of the picture
    assert_box(rows, "nose", [0.125, 0.2, 0.125, 0.2])
    assert rows.report.convention == "xyxy pixels"
    path.write_text(LABELME.replace("[[240, 60], [40, 270]]", "[[1, 2, 3], [1, 2, 3]]"))
    with pytest.raises(DataError, match="object 0"):
        grounded_rows(path.parent, images=tmp_path)


TASKS = {
    "a rectangle": """{"id": 1, "data": {"image": "/data/upload/3/0a1b2c3d-p.png"},
        "annotations": [{"result": [{"id": "r", "type": "rectanglelabels", "original_width": 400,
        "original_height": 300, "value": {"x": 10.0, "y": 20.0, "width": 50.0, "height": 70.0, "rotation": 0,
        "rectanglelabels": ["dog"]}}]}]}""",
    "a turned rectangle": """{"id": 1, "data": {"image": "/data/upload/3/0a1b2c3d-p.png"},
        "annotations": [{"result": [{"id": "r", "type": "rectanglelabels", "original_width": 400,
        "original_height": 300, "value": {"x": 10.0, "y": 90.0, "width": 52.5, "height": 66.66666666666667,
        "rotation": -90, "rectanglelabels": ["dog"]}}]}]}""",
    "a polygon": """{"id": 1, "data": {"image": "/data/upload/3/0a1b2c3d-p.png"},
        "annotations": [{"result": [{"id": "r", "type": "polygonlabels", "original_width": 400, "original_height": 300,
        "value": {"points": [[10, 20], [60, 50], [30, 90]], "polygonlabels": ["dog"]}}]}]}""",
    "an ellipse": """{"id": 1, "data": {"image": "/data/upload/3/0a1b2c3d-p.png"},
        "annotations": [{"result": [{"id": "r", "type": "ellipselabels", "original_width": 400, "original_height": 300,
        "value": {"x": 35, "y": 55, "radiusX": 25, "radiusY": 35, "ellipselabels": ["dog"]}}]}]}""",
    "the name apart": """{"id": 1, "data": {"image": "/data/upload/3/0a1b2c3d-p.png"},
        "annotations": [{"result": [{"id": "r", "type": "rectangle", "value": {"x": 10.0, "y": 20.0, "width": 50.0,
        "height": 70.0, "rotation": 0}}, {"id": "r", "type": "textarea", "value": {"x": 10.0, "y": 20.0, "width": 50.0,
        "height": 70.0, "text": ["dog"]}}]}]}""",
    "short": """{"id": 1, "image": "p.png", "label": [{"x": 10.0, "y": 20.0, "width": 50.0, "height": 70.0,
        "rotation": 0, "rectanglelabels": ["dog"]}]}""",
}  # fmt: skip


@pytest.mark.parametrize("case", TASKS)
def test_label_studio(case, folder):
    rows = grounded_rows(write(folder / "export.json", f"[{TASKS[case]}]"))
    assert_box(rows, "dog")
    assert rows.report.convention == "xywh 0..100"


def test_a_turned_rectangle_ends_with_the_picture(folder):
    """A square of 100 x 2**0.5 pixels, turned by 45 degrees about the corner of the picture."""
    square = {"x": 0, "y": 0, "width": 25 * 2**0.5, "height": 100 / 3 * 2**0.5, "rotation": 45}
    task = json.loads(TASKS["a rectangle"])
    task["annotations"][0]["result"][0]["value"] |= square
    rows = grounded_rows(write(folder / "export.json", json.dumps([task])))
    assert_box(rows, "dog", [0, 0, 0.25, 2 / 3])


def test_an_image_folder_with_splits_and_objects(tmp_path):
    for split in ("train", "test"):
        objects = {"bbox": [TALL], "categories": [0], "area": [4800.0], "id": [1]}
        write_lines(tmp_path / split / "metadata.jsonl", {"file_name": f"{split}.png", "objects": objects})
        picture().save(tmp_path / split / f"{split}.png")
    rows = grounded_rows(tmp_path, {"names": ["dog"]}, split="test")
    assert [row["image_id"] for row in rows] == ["test"]
    assert_box(rows, "dog", TALL_BOX)


def test_an_image_folder_with_two_pictures_a_row(tmp_path):
    phrases = [{"text": "the dog", "boxes": [BOX], "image": 1}]
    row = {"file_name": "a.png", "second_file_name": "b.png", "text": "see the dog", "phrases": phrases}
    write_lines(tmp_path / "metadata.jsonl", row)
    for name in "ab":
        picture().save(tmp_path / f"{name}.png")
    (row,) = grounded_rows(tmp_path)
    assert len(row["images"]) == 2
    assert row["phrases"][0]["image"] == 1


def test_an_image_folder_with_names_in_another_column(folder):
    write_lines(folder / "metadata.jsonl", {"front_file_name": "p.png", "text": "the dog", "bbox": TALL})
    assert_box(grounded_rows(folder), "the dog", TALL_BOX)


def test_one_json_file_beside_each_picture(tmp_path):
    record = """{"target_object": ["dog"], "bbox": [[40, 60, 200, 210]], "question": "What colour is the dog?",
        "options": ["red"]}"""
    write(tmp_path / "attributes" / "sa_1.json", record)
    picture().save(tmp_path / "attributes" / "sa_1.jpg")
    assert_box(grounded_rows(tmp_path), "dog")


def test_files_of_several_splits(folder):
    for name in ("refcoco_testA", "refcoco_val"):
        write_lines(folder / "data" / f"{name}.jsonl", {**GOOD, "text": f"the dog of {name}"})
    rows = grounded_rows(str(folder / "data" / "*.jsonl"), split="testA", images=folder)
    assert list(boxes_of(rows)) == ["the dog of refcoco_testA"]
    with pytest.raises(DataError, match=r"testA.*validation"):
        grounded_rows(folder / "data", split="testB", images=folder)


# Types of values


def encode(size=SIZE):
    file = io.BytesIO()
    picture(size).save(file, "PNG")
    return file.getvalue()


PNG = encode()
BASE64 = base64.b64encode(PNG).decode()


def as_parquet(tmp_path, **changes):
    row = {"image": PNG, "text": "the dog", "bbox": TALL, **changes}
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({name: [value] for name, value in row.items()}), path)
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"image": PNG},
        {"image": {"bytes": PNG, "path": "p.png"}},
        {"image": [{"bytes": PNG, "path": None}]},
        {"image": BASE64},
        {"image": "data:image/png;base64," + BASE64},
        {"image_id": 17},
        {"bbox": [Decimal(side) for side in TALL]},
        {"bbox": "[300, 200, 80, 60]"},
        {"bbox": "300 200 80 60"},
        {"bbox": ["300", "200", "80", "60"]},
        {"bbox": [TALL]},
        {"text": ["the dog"]},
    ],
    ids=lambda changes: "{}: {:.20}".format(*changes, str(*changes.values())),
)
def test_types_in_parquet(changes, tmp_path):
    rows = grounded_rows(as_parquet(tmp_path, **changes), boxes="xywh pixels")
    assert_box(rows, "the dog", TALL_BOX)
    (row,) = rows
    assert row["image"].mode == "RGB"
    assert row["image"].size == SIZE
    assert isinstance(row["image_id"], str)


NESTED = {
    "samples": '{"samples": [{"sentences": ["the dog"], "bbox": [300, 200, 80, 60], "label": "dog"}]}',
    "regions": '{"regions": [{"phrase": "the dog", "x": 300, "y": 200, "width": 80, "height": 60}]}',
    "boxes and labels": '{"bboxes": [[300, 200, 80, 60]], "labels": ["the dog"]}',
    "entities": '{"caption": "see the dog", "entities": [{"text": "the dog", "bbox": [300, 200, 80, 60]}]}',
}


@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.parametrize("case", NESTED)
def test_nested_columns_are_lists_or_texts_of_json(case, as_text, tmp_path):
    row = {"image": PNG, **json.loads(NESTED[case])}
    if as_text:
        row |= {key: json.dumps(value) for key, value in row.items() if isinstance(value, list)}
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([row]), path)
    assert_box(grounded_rows(path), "the dog", TALL_BOX)


CLASSES = datasets.ClassLabel(names=["cat", "dog"])
FLOATS = datasets.List(datasets.Value("float32"))


def test_a_class_beside_a_box(tmp_path):
    features = datasets.Features({"image": datasets.Image(), "label": CLASSES, "bbox": FLOATS})
    data = datasets.Dataset.from_list([{"image": picture(), "label": 1, "bbox": TALL}], features=features)
    data.to_parquet(tmp_path / "rows.parquet")
    for source in (data, tmp_path / "rows.parquet"):
        assert_box(grounded_rows(source), "dog", TALL_BOX)


def test_values_of_lists_of_rows(tmp_path):
    given = [
        {"image": picture(), "text": np.str_("the dog"), "bbox": np.array(TALL, np.float32)},
        {"image": np.asarray(picture()), "text": "the cat", "bbox": list(np.int64(TALL))},
    ]
    rows = grounded_rows(given)
    assert boxes_of(rows).keys() == {"the dog", "the cat"}
    assert_box(rows, "the cat", TALL_BOX)


@pytest.fixture(scope="module")
def data_set():
    objects = datasets.List({"bbox": FLOATS, "category": CLASSES})
    features = datasets.Features({"image": datasets.Image(), "objects": objects})
    row = {"image": picture(), "objects": [{"bbox": TALL, "category": 1}]}
    return datasets.Dataset.from_list([row], features=features)


@pytest.mark.parametrize("form", ["Dataset", "numpy", "torch", "IterableDataset", "DatasetDict", "Parquet", "disk"])
def test_data_sets(form, data_set, tmp_path):
    split = None
    source = data_set
    if form in ("numpy", "torch"):
        source = data_set.with_format(form)
    elif form == "IterableDataset":
        source = data_set.to_iterable_dataset()
    elif form == "DatasetDict":
        source = datasets.DatasetDict(testA=data_set, testB=data_set)
        split = "testB"
    elif form == "Parquet":
        source = tmp_path / "rows.parquet"
        data_set.to_parquet(source)
    elif form == "disk":
        source = tmp_path / "disk"
        data_set.save_to_disk(source)
    rows = grounded_rows(source, split=split)
    for _ in range(2):
        (row,) = rows
        assert row["image"].size == SIZE
        assert_box(rows, "dog", TALL_BOX)


def test_a_stream_is_not_read_whole():
    drawn = []

    def rows():
        for number in range(10_000):
            drawn.append(number)
            yield {"image": picture((40, 30)), "text": "the dog", "bbox": [30, 20, 8, 6]}

    stream = datasets.IterableDataset.from_generator(rows)
    found = grounded_rows(stream, max_rows=3)
    assert len(list(found)) == 3
    assert found.report.rows == 3
    assert len(set(drawn)) < 1000
    assert not found.report.complete


def test_a_data_set_without_decoded_pictures(tmp_path):
    (row,) = grounded_rows(as_parquet(tmp_path)).decode(False)
    assert isinstance(row["image"], bytes)
    assert row["width"] == 400


def test_csv_with_named_columns(folder):
    path = write(folder / "rows.csv", "pic;what;l;t;r;b\np.png;the dog;40;60;240;270\n")
    columns = {"image": "pic", "text": "what", "boxes": ["l", "t", "r", "b"]}
    assert_box(grounded_rows(path, columns), "the dog")
    columns["boxes"][0] = "left"
    with pytest.raises(DataError, match="no column left"):
        grounded_rows(path, columns)


def test_columns_that_are_named_win(tmp_path):
    path = as_parquet(tmp_path, answer="the cat", box=[0, 0, 1, 1], gt=TALL)
    assert_box(grounded_rows(path, {"text": "answer", "boxes": "gt"}), "the cat", TALL_BOX)


def test_a_turned_photograph(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    picture((300, 400)).save(tmp_path / "p.jpg", exif=exif)
    rows = read(tmp_path, {**GOOD, "image": "p.jpg"})
    (row,) = rows
    assert row["image"].size == (row["width"], row["height"]) == SIZE
    assert_box(rows, "the dog", TALL_BOX)


# What must be asked


def test_the_same_name_with_two_meanings(folder):
    """`bbox` is x, y, width, height in lmms-lab/RefCOCO and corners in jxu124/refcoco; both would fit as the other."""
    common = {"image": "p.png", "bbox": [40, 60, 150, 120]}
    rows = read(folder, {**common, "question_id": "1", "question": "?", "answer": ["the dog"]})
    assert_box(rows, "the dog", [0.1, 0.2, 0.475, 0.6])
    rows = read(folder, {**common, "ref_id": 1, "sentences": ["x"], "captions": ["the dog"]})
    assert_box(rows, "the dog", [0.1, 0.2, 0.375, 0.4])


def test_each_turn_has_its_own_picture(folder):
    picture().save(folder / "q.png")
    messages = """[{"role": "user", "content": "<image>Find the dog."},
        {"role": "assistant", "content": "<box>(100,200),(600,900)</box>"},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Find the cat."}]},
        {"role": "assistant", "content": "<box>(0,0),(500,500)</box>"}]"""
    (row,) = read(folder, {"images": ["p.png", "q.png"], "messages": json.loads(messages)})
    assert [(phrase["text"], phrase["image"]) for phrase in row["phrases"]] == [("the dog", 0), ("the cat", 1)]


def test_a_list_of_texts_beside_a_list_of_boxes(folder):
    texts = ["the dog", "the cat", "the dog"]
    boxes = [[0.1, 0.1, 0.2, 0.2], [0.5, 0.6, 0.55, 0.65], [0.8, 0.8, 0.9, 0.9]]
    rows = list(read(folder, {"image": "p.png", "text": texts, "boxes": boxes}, boxes="xyxy 0..1"))
    assert [row["text"] for row in rows] == texts
    assert [row["phrases"][0]["boxes"] for row in rows] == [[box] for box in boxes]


def test_numbers_in_brackets_within_talk_are_no_points(folder):
    turns = [{"from": "human", "value": "<image>\nThe score?"}, {"from": "gpt", "value": "It was (3, 4)."}]
    (row,) = read(folder, {"image": "p.png", "conversations": turns})
    assert row["phrases"] == []


def test_a_question_is_asked(folder):
    path = write_lines(folder / "a.jsonl", {**GOOD, "bbox": [40, 60, 150, 120]})
    with pytest.raises(UnclearBoxes) as error:
        grounded_rows(path)
    readings = [str(reading) for reading in error.value.readings]
    assert readings == ["xyxy pixels", "xywh pixels"]
    for reading in readings:
        assert boxes_of(grounded_rows(path, boxes=reading))
    assert str(grounded_rows(path, boxes="xywh").report.convention) == "xywh pixels"
    with pytest.raises(DataError, match="xwyh"):
        grounded_rows(path, boxes="xwyh pixels")


def test_a_wrong_box_late_in_the_rows_is_counted(folder):
    rows = [{**GOOD, "text": f"dog {n}"} for n in range(300)]
    rows[250]["bbox"] = [500, 400, 20, 20]
    found = read(folder, *rows, boxes="xywh pixels")
    assert list(found)[250]["phrases"][0]["boxes"] == []
    assert sum(found.report.dropped.values()) == 1
    [[example]] = found.report.examples.values()
    assert "line 251" in example


# Damaged and odd rows: an error that names file, row and value, or the right reading

# The row, and what the refusal must name.
DAMAGED = {
    '{"image": "p.png", "text": "the dog", "bbox": [1, 2, 3]}': "four numbers",
    '{"image": "p.png", "text": "the dog", "bbox": [1, 2, 3, 4, 5]}': "four numbers",
    '{"image": "p.png", "text": "the dog", "bbox": ["a", "b", "c", "d"]}': "finite numbers",
    '{"image": "p.png", "text": "the dog", "bbox": [1, null, 3, 4]}': "found [1, None, 3, 4], expected finite",
    '{"image": "p.png", "text": "the dog", "bbox": [true, false, true, true]}': "finite numbers",
    '{"image": "p.png", "text": "the dog", "bbox": [1, 2, NaN, 4]}': "finite numbers",
    '{"image": "p.png", "text": "the dog", "bbox": [1, 2, 1e400, 4]}': "finite numbers",
    '{"image": "p.png", "text": "the dog", "bbox": "left"}': "finite numbers",
    '{"image": "p.png", "text": "the dog", "bbox": "[1, 2, 3"}': "neither JSON nor a list",
    '{"image": "p.png", "text": "the dog", "bbox": {"a": 1}}': "x1, y1, x2, y2, or x, y, width, height",
    '{"image": "p.png", "text": 5, "bbox": [300, 200, 80, 60]}': "an unknown shape",
    '{"image": "p.png", "text": " ", "bbox": [300, 200, 80, 60]}': "no text: found ['image', 'text', 'bbox']",
    '{"image": "p.png", "text": "the dog", "bbox": [300, 200, 80, 60], "width": -4, "height": 300}':
        "width or height: found [-4, 300]",
    '{"image": "p.png", "text": "the dog", "bbox": [300, 200, 80, 60], "width": "wide", "height": 300}':
        "width or height: found ['wide', 300]",
    '{"image": "p.png", "text": "the dog", "bbox": [300, 200, 80, 60], "width": 300, "height": 400}':
        "boxes='xywh 0..1000'",
    '{"image": "rows.jsonl", "text": "the dog", "bbox": [300, 200, 80, 60]}': "not an image file",
    """{"image": "p.png", "text": "the dog",
        "phrases": [{"text": "the dog", "boxes": [[0.1, 0.2, 0.6, 0.9]], "bboxs": [[0.1, 0.2, 0.6, 0.9]]}]}""":
        "did you mean 'boxes'",
    '{"image": "p.png", "text": "the dog", "phrases": [{"text": "the dog"}]}': "neither boxes nor regions",
    '{"image": "p.png", "text": "the dog", "phrases": [{"text": "the cat", "boxes": [[0.1, 0.2, 0.6, 0.9]]}]}':
        "phrase 0 ('the cat')",
    """{"image": "p.png", "text": "the dog and the dog",
        "phrases": [{"text": "the dog", "boxes": [[0.1, 0.2, 0.6, 0.9]]}]}""":
        "2 times in the texts",
    """{"image": "p.png", "text": "the dog",
        "phrases": [{"text": "the dog", "boxes": [[0.1, 0.2, 0.6, 0.9]], "start": 0, "end": 99}]}""":
        "characters 0 to 99",
    """{"image": "p.png", "text": "the dog", "phrases": [{"text": "the dog",
        "boxes": [[0.1, 0.2, 0.6, 0.9]], "start": 1, "end": 7}]}""":
        "'he dog'",
    """{"image": "p.png", "text": "the dog",
        "phrases": [{"text": "the dog", "boxes": [[0.1, 0.2, 0.6, 0.9]], "start": 0}]}""":
        "start and end are 0 and None",
    """{"image": "p.png", "text": "the dog",
        "phrases": [{"text": "the dog", "boxes": [[0.1, 0.2, 0.6, 0.9]], "sentence": 2}]}""":
        "sentence is 2",
    """{"image": "p.png", "text": "the dog",
        "phrases": [{"text": "the dog", "boxes": [[0.1, 0.2, 0.6, 0.9]], "image": 1}]}""":
        "image is out of range: found 1",
    """{"image": "p.png", "text": "the dog",
        "phrases": [{"text": "the dog", "boxes": [[0.1, 0.2, 0.6, 0.9]], "weight": "high"}]}""":
        "weight: found 'high'",
    '{"image": "p.png", "text": "the dog", "phrases": [{"text": "the dog", "boxes": [[40, 60, 240, 270]]}]}':
        "such as [40, 60, 240, 270]",
    '{"image": "p.png", "text": "the dog", "phrases": ["the dog"]}': "'the dog' is not a dictionary",
    """{"image": "p.png", "messages": [{"role": "narrator",
        "content": "x"}]}""":
        "role: found 'narrator'",
    '{"image": "p.png", "messages": [{"role": "user"}]}': "message 0: bad content",
    '{"image": "p.png", "messages": []}': "messages: found []",
    '{"image": "p.png", "messages": [{"role": "user", "content": [{"type": "video"}]}]}':
        "found {'type': 'video'}",
    """{"image": "p.png", "messages": [{"role": "user",
        "content": "Where is the dog?"}, {"role": "assistant", "content": "<box>(100,200),(600,1900)</box>"}]}""":
        "[100, 200, 600, 1900]",
    """{"messages": [{"role": "user", "content": "<image>Find <ref-object>."},
        {"role": "assistant", "content": "<bbox>"}], "images": ["p.png"], "objects": {"ref": ["the dog"], "bbox": [],
        "bbox_type": "norm1"}}""":
        "too few for <bbox>",
    """{"messages": [{"role": "user",
        "content": "<ref-object> <ref-object>"}], "images": ["p.png"], "objects": {"ref": [],
        "bbox": [[0.1, 0.2, 0.6, 0.9]], "bbox_type": "norm1"}}""":
        "too few for <ref-object>",
    """{"messages": [{"role": "user",
        "content": "<image>Find <ref-object>."}, {"role": "assistant", "content": "<bbox>"}], "images": ["p.png"],
        "objects": {"ref": ["the dog"], "bbox": [[0.1, 0.2, 0.6, 0.9]], "bbox_type": "norm7"}}""":
        "bbox_type: found 'norm7'",
    """{"messages": [{"role": "user",
        "content": "<image>Find <ref-object>."}, {"role": "assistant", "content": "<bbox>"}], "images": ["p.png"],
        "objects": {"ref": ["the dog"], "bbox": [[0.1, 0.2, 0.6, 0.9]], "bbox_type": "norm1", "image_id": [0, 1]}}""":
        "one image_id for each bbox",
    '{"image": "p.png", "caption": "the dog", "noun_chunks": [[0, 7, 0.1]]}':
        "noun_chunks, element 0: found [0, 7, 0.1]",
    '{"image": "p.png", "caption": "the dog", "noun_chunks": [[0, 70, 0.1, 0.2, 0.6, 0.9, 0.9]]}':
        "noun_chunks, element 0: found [0, 70]",
    '{"image": "p.png", "caption": "the dog", "noun_chunks": [[0, 7, 40, 60, 240, 270, 0.9]]}':
        "such as [40, 60, 240, 270]",
    '{"image": "p.png", "objects": {"bbox": [[300, 200, 80, 60], [300, 200, 80, 60]], "category": ["dog"]}}':
        "{'bbox': 2, 'category': 1}",
    '{"image": "p.png", "objects": {"bbox": [[300, 200, 80, 60]]}}': "object 0: no name",
    '{"image": "p.png", "objects": [1]}': "objects: found [1]",
    '{"a": 1, "b": 2}': "found 'a, b'",
    '{"image": "p.png", "text": "the dog", "where": [1, 2, 3, 4]}': "found 'where'",
}  # fmt: skip
# Rows that only look like those of a known set: the user is asked.
LIKE_A_SET = {
    # answers that are no RefCOCO
    '{"image": "p.png", "question": "?", "answer": ["the dog"], "bbox": [40, 60, 150, 120]}':
        "boxes='xyxy pixels'",
    # a conversation as a text that is no UGround
    r'{"image": "p.png", "conversations": "[{\"from\": \"human\", \"value\": \"<image>\\nFind the dog.\"}, '
        r'{\"from\": \"gpt\", \"value\": \"{\\\"bbox_2d\\\": [40, 60, 150, 120]}\"}]"}':
        "boxes='xyxy 0..1000'",
    # a point and the size of its picture
    '{"image": "p.png", "text": "the dog", "x": 0.3, "y": 0.5, "width": 400, "height": 300}':
        "columns={'boxes': ['x', 'y']}",
    # a caption that is not of Ref-L4
    '{"image": "p.png", "caption": "the dog", "bbox": [40, 60, 150, 120], "bbox_id": 3}': "boxes='xyxy pixels'",
    # samples that are not of RefCOCO-M
    '{"image": "p.png", "samples": [{"sentence": "the dog", "bbox": [40, 60, 150, 120]}]}': "boxes='xyxy pixels'",
    # targets that are not of V*
    '{"image": "p.png", "question": "Where is the dog?", "target_object": ["dog"], "bbox": [[40, 60, 150, 120]]}':
        "boxes='xyxy pixels'",
    # two names and then three boxes
    """{"images": ["p.png"], "messages": [{"role": "user",
        "content": "<image>Find <ref-object> and <ref-object>."}, {"role": "assistant",
        "content": "<bbox><bbox><bbox>"}], "objects": {"ref": ["the dog", "the cat"], "bbox": [[0.1, 0.2, 0.6, 0.9],
        [0.1, 0.2, 0.6, 0.9], [0.1, 0.2, 0.6, 0.9]], "bbox_type": "norm1"}}""":
        "whose boxes",
    # one box and two pictures
    '{"images": ["p.png", "p.png"], "text": "the dog", "bbox": [300, 200, 80, 60]}': "several pictures: found 2",
    # one box and a turn with two pictures
    """{"images": ["p.png", "p.png"],
        "messages": [{"role": "user", "content": "<image><image>Find the dog."}, {"role": "assistant",
        "content": "<box>(100,200),(600,900)</box>"}]}""":
        "several pictures: found 2",
}  # fmt: skip


@pytest.mark.parametrize("row, problem", (DAMAGED | LIKE_A_SET).items())
def test_a_damaged_row(row, problem, folder):
    path = write(folder / "rows.jsonl", row.replace("\n", " ") + "\n")
    with pytest.raises(DataError, match=re.escape(problem)) as error:
        list(grounded_rows(path))
    message = str(error.value)
    assert str(path) in message
    assert "line 1" in message or "boxes" in message


ODD = {
    "a null box": '{"image": "p.png", "text": "the dog", "bbox": null}',
    "an empty list of boxes": '{"image": "p.png", "text": "the dog", "bbox": []}',
    "a null among boxes": '{"image": "p.png", "text": "the dog", "bbox": [null, [300, 200, 80, 60]]}',
    "no object": '{"image": "p.png", "objects": {"bbox": [], "category": []}}',
    "null objects": '{"image": "p.png", "objects": []}',
    "a phrase that means nothing": """{"image": "p.png", "text": "the dog", "phrases": [{"text": "the dog",
        "boxes": []}]}""",
    "a null key": """{"image": "p.png", "text": "the dog", "phrases": [{"text": "the dog",
        "boxes": [[0.1, 0.2, 0.6, 0.9]], "entity": null}]}""",
    "no phrase": '{"image": "p.png", "text": "the dog", "phrases": []}',
    "a conversation without boxes": """{"image": "p.png", "messages": [{"role": "user",
        "content": "Where is the dog?"}]}""",
    "a null chunk": '{"image": "p.png", "caption": "the dog", "noun_chunks": null, "ref_exps": []}',
    "an absolute path": '{"image": "ABSOLUTE", "text": "the dog", "bbox": [300, 200, 80, 60]}',
    "a path of another machine": """{"image": "/home/someone/data/p.png", "text": "the dog",
        "bbox": [300, 200, 80, 60]}""",
    "a file URL": '{"image": "file://ABSOLUTE", "text": "the dog", "bbox": [300, 200, 80, 60]}',
}  # fmt: skip
# A row of the same shape, by a column of it.
GOOD_ROWS = json.loads("""{
    "objects": {"image": "p.png", "objects": {"bbox": [[300, 200, 80, 60]], "category": ["dog"]}},
    "phrases": {"image": "p.png", "text": "the dog",
        "phrases": [{"text": "the dog", "boxes": [[0.1, 0.2, 0.6, 0.9]]}]},
    "messages": {"image": "p.png", "messages": [{"role": "user", "content": "Where is the dog?"},
        {"role": "assistant", "content": "<box>(100,200),(600,900)</box>"}]},
    "noun_chunks": {"image": "p.png", "caption": "the dog", "noun_chunks": [[0, 7, 0.1, 0.2, 0.6, 0.9, 0.9]]}}""")


@pytest.mark.parametrize("case", ODD)
def test_an_odd_row_is_read(case, folder):
    odd = json.loads(ODD[case].replace("ABSOLUTE", str(folder / "p.png")))
    [good] = [row for column, row in GOOD_ROWS.items() if column in odd] or [GOOD]
    rows = read(folder, good, odd)
    assert len(list(rows)) == 2
    assert rows.report.rows == 2


def test_a_picture_that_is_missing_is_counted(folder):
    rows = read(folder, GOOD, {**GOOD, "image": "q.png"})
    assert len(list(rows)) == 1
    assert rows.report.missing == ["q.png"]
    with pytest.raises(DataError, match=r"q\.png"):
        list(read(folder, {**GOOD, "image": "q.png"}))


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": }', "[[1, 2]]", "null"])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_a_damaged_file(name, content, tmp_path):
    with pytest.raises(ValueError, match=name):
        list(grounded_rows(write(tmp_path / name, content)))


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv"])
def test_a_damaged_table(name, tmp_path):
    (tmp_path / name).write_bytes(b"\xff\x00PAR1")
    with pytest.raises(DataError, match=name):
        list(grounded_rows(tmp_path / name))


@pytest.mark.parametrize(
    "names, line, problem",
    [
        ("{}", "0 0.5 0.5 0.1 0.1", "names"),
        ("[dog]", "7 0.5 0.5 0.1 0.1", "class: found '7'"),
        ("[dog]", "0 0.5 0.5", "found '0 0.5 0.5', expected a class"),
        ("[dog]", "dog 0.5 0.5 0.1 0.1", "line 1: .*'dog'"),
        ("[dog]", "0 nan 0.5 0.1 0.1", "found .nan, 0.5"),
        ("[dog]", "0 40 60 240 270", "40, 60, 240, 270"),
    ],
)
def test_damaged_files_of_yolo(names, line, problem, folder):
    write(folder / "data.yaml", f"names: {names}")
    write(folder / "p.txt", line)
    with pytest.raises(DataError, match=problem):
        list(grounded_rows(folder))


@pytest.mark.parametrize(
    "content", ["<annotation>", "<annotation><object><name>dog</name></object></annotation>"], ids=["cut", "no box"]
)
def test_damaged_files_of_voc(content, tmp_path):
    write(tmp_path / "a.xml", content)
    with pytest.raises(DataError, match=r"a\.xml"):
        list(grounded_rows(tmp_path))


def test_sources_that_are_none(tmp_path):
    for source in (tmp_path, tmp_path / "nothing.json", 5):
        with pytest.raises((DataError, FileNotFoundError)):
            grounded_rows(source)
    with pytest.raises(DataError, match="colour"):
        grounded_rows([GOOD], {"colour": "x"})


def test_captions_without_boxes_are_rows_with_a_word_about_it(folder, caplog):
    rows = read(folder, {"image": "p.png", "caption": ["a dog", "the dog"], "sentids": ["1", "2"], "img_id": "7"})
    (row,) = rows
    assert row["captions"] == ["a dog", "the dog"]
    assert row["phrases"] == []
    assert "no column of boxes" in caplog.text
    assert "no column of boxes" in str(rows.report)


def test_a_drag_has_two_points(folder):
    drag = {"from": "gpt", "value": "drag()", "from_coord": [0.1, 0.2], "to_coord": [0.6, 0.9]}
    turns = [{"from": "human", "value": "<image>drag the dog"}, drag]
    boxes = boxes_of(read(folder, {"image": "p.png", "conversations": turns}))
    assert boxes == {"drag the dog": [[0.1, 0.2, 0.1, 0.2], [0.6, 0.9, 0.6, 0.9]]}


def test_a_long_field_of_a_csv_is_read_and_leaves_the_limit_of_the_process(tmp_path):
    limit = csv.field_size_limit()
    path = write(tmp_path / "rows.csv", "image,text,bbox\n" + f'a.png,"{"x" * (limit + 1)}","[0.1, 0.2, 0.3, 0.4]"\n')
    _, _, row = next(_csv(path))
    assert len(row["text"]) > limit
    assert csv.field_size_limit() == limit


def test_a_picture_that_cannot_be_read_is_left_out_and_counted(folder):
    for name in ("q.png", "r.png"):
        picture().save(folder / name)
    (folder / "q.png").write_bytes(PNG[:60])
    rows = [{**GOOD, "image": name} for name in ("p.png", "q.png", "r.png")]
    found = read(folder, *rows)
    assert [row["image_id"] for row in found] == ["p", "r"]
    assert found.report.dropped["the picture cannot be read"] == 1
    assert "q.png" in str(found.report.examples)
    with pytest.raises(DataError, match=r"q\.png"):
        list(read(folder, rows[1]))


@pytest.mark.parametrize("scale, size", [(100, (640, 480)), (1000, (4000, 3000))])
def test_boxes_that_may_be_shares_of_much_larger_pictures_are_asked_about(folder, scale, size):
    picture(size).save(folder / "p.png")
    percent = np.array([[60, 10, 90, 30], [70, 50, 80, 60], [50, 60, 95, 70], [80, 20, 99, 40]])
    rows = [{**GOOD, "bbox": box} for box in (percent * (scale // 100)).tolist()]
    shares = f"xyxy 0..{scale}"
    with pytest.raises(UnclearBoxes) as error:
        read(folder, *rows)
    assert {"xyxy pixels", shares} < {str(reading) for reading in error.value.readings}
    with pytest.raises(UnclearBoxes) as error:
        read(folder, *rows, boxes="xyxy")
    assert {"xyxy pixels", shares} == {str(reading) for reading in error.value.readings}
    assert read(folder, *rows, boxes="xyxy pixels").report.convention == "xyxy pixels"
    (row, *_) = read(folder, *rows, boxes=shares)
    assert row["phrases"][0]["boxes"][0][2] == pytest.approx(0.9)
    rows.append({**GOOD, "bbox": [60, 10, 1.8 * scale, 30]})  # beyond the range
    assert read(folder, *rows, boxes="xyxy").report.convention == "xyxy pixels"

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes of words as tools of labelling import them: their documented form, and the boxes of the look itself."""

import json

import numpy as np
import pytest
from jsonschema import validate
from PIL import Image

from grounded_attention.commands.look import main
from grounded_attention.dataset_scripts.rows.reader import grounded_rows
from grounded_attention.lens.export import Exported, export_lens
from grounded_attention.lens.look import look
from tests.helpers.tiny_vlm_files import save_llava
from tests.helpers.tiny_vlm_models import make_pair

PERCENT = {"type": "number", "minimum": 0, "maximum": 100}
# As the page "Import pre-annotated data" of Label Studio says it.
REGION = {
    "type": "object",
    "required": ["from_name", "to_name", "type", "value", "original_width", "original_height"],
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "rectanglelabels"},
        "from_name": {"type": "string"},
        "to_name": {"type": "string"},
        "original_width": {"type": "integer", "minimum": 1},
        "original_height": {"type": "integer", "minimum": 1},
        "image_rotation": {"type": "integer"},
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "value": {
            "type": "object",
            "required": ["x", "y", "width", "height", "rectanglelabels"],
            "properties": {
                **dict.fromkeys(("x", "y", "width", "height"), PERCENT),
                "rotation": {"type": "number"},
                "rectanglelabels": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            },
            "additionalProperties": False,
        },
    },
}
TASKS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["data", "predictions"],
        "properties": {
            "data": {"type": "object", "required": ["image"]},
            "predictions": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["result"],
                    "properties": {
                        "model_version": {"type": "string"},
                        "score": {"type": "number", "minimum": 0, "maximum": 1},
                        "result": {"type": "array", "items": REGION},
                    },
                },
            },
        },
    },
}


@pytest.fixture(scope="module")
def looked(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "a.png"
    pixels = np.random.default_rng(0).integers(0, 255, (80, 120, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    model, processor = make_pair("llava")
    lens = look(model, processor, str(path), "what is this ?", answer="a small cat")
    return Exported(lens, [str(path)])


def answer_boxes(lens):
    return {place["text"]: place["box"] for place in lens.answer_places()}


def test_label_studio_imports_the_tasks_and_its_export_has_the_boxes(looked, tmp_path):
    tasks = json.loads(export_lens([looked], "label-studio"))
    validate(tasks, TASKS)
    # A person accepts the predictions: they become an annotation, which our own reader reads.
    for number, task in enumerate(tasks):
        task |= {"id": number, "annotations": [{"result": task.pop("predictions")[0]["result"]}]}
    path = tmp_path / "export.json"
    path.write_text(json.dumps(tasks))
    [row] = grounded_rows(str(path))
    read = {phrase["text"]: phrase["boxes"][0] for phrase in row["phrases"]}
    expected = answer_boxes(looked.lens)
    assert read.keys() == expected.keys()
    for name, box in read.items():
        assert box == pytest.approx(expected[name], abs=1e-6)


def test_fiftyone_and_coco_have_the_same_boxes_in_their_units(looked):
    [sample] = json.loads(export_lens([looked], "fiftyone"))
    results = json.loads(export_lens([looked], "coco"))
    expected = answer_boxes(looked.lens)
    assert sample["filepath"] == looked.images[0]
    assert [each["category_name"] for each in results] == [*expected]
    for detection, result in zip(sample["detections"], results, strict=True):
        x1, y1, x2, y2 = expected[detection["label"]]
        assert detection["bounding_box"] == pytest.approx([x1, y1, x2 - x1, y2 - y1])
        pixels = [120 * x1, 80 * y1, 120 * (x2 - x1), 80 * (y2 - y1)]
        assert result["bbox"] == pytest.approx(pixels)
        assert result["score"] == detection["confidence"]


def test_the_command_names_the_pictures(looked, tmp_path, capsys):
    model = save_llava(tmp_path / "llava")
    output = tmp_path / "tasks.json"
    asked = [
        looked.images[0],
        "what is this ?",
        "--model",
        model,
        "--answer",
        "a small cat",
        "--export",
        "label-studio",
    ]
    assert main([*map(str, asked), "--output", str(output)]) == 0
    [task] = json.loads(output.read_text())
    assert task["data"]["image"] == looked.images[0]
    assert len(task["predictions"][0]["result"]) == 3
    capsys.readouterr()
    assert main([*map(str, asked), "--output", str(tmp_path / "lens.html")]) == 2
    assert ".json" in capsys.readouterr().err


def test_another_number_of_names_is_refused(looked):
    with pytest.raises(ValueError, match="look 0 has 1 pictures"):
        export_lens([Exported(looked.lens, [])], "coco")
    with pytest.raises(ValueError, match="coco"):
        export_lens([looked], "yolo")

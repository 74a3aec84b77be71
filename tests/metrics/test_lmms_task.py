# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The functions of the task for lmms-eval: a document for each phrase, and overlaps by hand."""

import importlib.util
from pathlib import Path

import pytest
from datasets import Dataset

from tests.helpers.own_rows import draw
from tests.helpers.plain_overlap import plain_iou

FILE = Path(__file__).parents[2] / "examples/lmms_eval/utils.py"


@pytest.fixture
def task(monkeypatch):
    monkeypatch.setenv("BOXES", "plain")
    spec = importlib.util.spec_from_file_location("lmms_utils", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_phrase_is_a_question_whose_box_is_scored(task, tmp_path):
    path = str(tmp_path / "a.png")
    draw(0).save(path)
    boxes = {"a red ball": [[0.1, 0.1, 0.5, 0.5]], "a dog": [[0.6, 0.6, 0.9, 0.9], [0.0, 0.0, 0.2, 0.2]], "it": []}
    phrases = [{"text": text, "boxes": of_phrase} for text, of_phrase in boxes.items()]
    rows = [{"image": path, "text": "a red ball, a dog and it", "phrases": phrases}]
    docs = task.read_docs(Dataset.from_list(rows))
    assert docs["text"] == ["a red ball", "a dog"]
    for doc in docs:
        assert doc["text"] in task.question(doc)
        assert task.pictures(doc)[0].size
        for box in ([100, 100, 500, 500], [150, 100, 520, 480], [610, 600, 890, 900], [0, 0, 1000, 1000]):
            right = any(plain_iou([side / 1000 for side in box], gold) >= 0.5 for gold in doc["boxes"])
            assert task.score(doc, [f"It is at {box}."]) == {"box_accuracy": float(right)}
        assert task.score(doc, ["nowhere"]) == {"box_accuracy": 0.0}

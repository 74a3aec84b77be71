# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""GQA's builder and its file of predictions, on files in the official layout, and the scenes' questions."""

import json
import tracemalloc

import pytest

from grounded_attention.dataset_scripts.builders.gqa import GQA, read_predictions, read_questions, write_predictions
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError


def question(image="n15", answer="red", **changes):
    """A record with the fields of the official files."""
    return {
        "semantic": [{"operation": "select", "dependencies": [], "argument": "car (1)"}],
        "entailed": ["0002", "0001"],
        "equivalent": ["0001"],
        "question": "What color is the car?",
        "imageId": image,
        "isBalanced": True,
        "groups": {"global": None, "local": "06-car_color"},
        "answer": answer,
        "semanticStr": "select: car (1)",
        "annotations": {"answer": {}, "question": {"4": "1"}, "fullAnswer": {}},
        "types": {"detailed": "directOf", "semantic": "attr", "structural": "query"},
        "fullAnswer": f"The car is {answer}.",
        **changes,
    }


def write(folder, name, content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content))
    return folder


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "gqa" / "questions1.2"
    other = question("7", "yes", isBalanced=False, groups={"global": "color", "local": None})
    write(folder, "train_balanced_questions.json", {"0001": question()})
    for part in range(10):
        write(folder / "train_all_questions", f"train_all_questions_{part}.json", {f"0{part}": question(str(part))})
    write(folder, "val_balanced_questions.json", {"0001": question()})
    write(folder, "val_all_questions.json", {"0001": question(), "07333408": other})
    bare = {"question": "Is it?", "imageId": "n3", "isBalanced": True}
    write(folder, "test_balanced_questions.json", {"000123": bare})
    return tmp_path


def build(data_dir, tmp_path, name="balanced", **options):
    builder = GQA(config_name=name, data_dir=str(data_dir), cache_dir=str(tmp_path / "cache"), **options)
    builder.download_and_prepare()
    return builder


def test_rows_have_what_the_official_metrics_read(data, tmp_path):
    builder = build(data, tmp_path)
    splits = builder.as_dataset()
    assert set(splits) == {"train", "validation", "test"}
    assert splits["train"][0] == {
        "example_id": "0001",
        "image_id": "n15",
        "question": "What color is the car?",
        "answer": "red",
        "full_answer": "The car is red.",
        "is_balanced": True,
        "structural_type": "query",
        "semantic_type": "attr",
        "detailed_type": "directOf",
        "global_group": "",
        "local_group": "06-car_color",
        "entailed": ["0002", "0001"],
        "equivalent": ["0001"],
        "valid": [],
        "plausible": [],
    }
    test = splits["test"][0]
    assert (test["example_id"], test["answer"], test["structural_type"], test["entailed"]) == ("000123", "", "", [])


def test_all_questions_come_from_ten_files_of_training(data, tmp_path):
    builder = build(data, tmp_path, "all")
    splits = builder.as_dataset()
    assert set(splits) == {"train", "validation"}
    assert splits["train"]["image_id"][:] == [str(part) for part in range(10)]
    assert splits["validation"]["is_balanced"][:] == [True, False]
    assert splits["validation"][1]["global_group"] == "color" and splits["validation"][1]["local_group"] == ""
    assert {name: builder.report["validation"][name] for name in ("questions", "balanced")} == {
        "questions": 2,
        "balanced": 1,
    }


def test_choices_are_joined_where_their_file_exists(data, tmp_path):
    choices = {"0001": {"valid": ["red", "blue"], "plausible": ["red"]}, "9": {"valid": [], "plausible": []}}
    write(data / "eval", "val_choices.json", choices)
    row = build(data, tmp_path, splits="val").as_dataset("validation")[0]
    assert (row["valid"], row["plausible"]) == (["red", "blue"], ["red"])
    write(data / "eval", "val_choices.json", {"9": choices["9"]})
    with pytest.raises(DataError, match=r"val_choices\.json: no choices of a question.*'0001'"):
        build(data, tmp_path, splits="val")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answer": None}, "question '1': bad answer: expected a text"),
        ({"isBalanced": "yes"}, "question '1': bad isBalanced: found 'yes', expected true or false"),
        ({"types": []}, "question '1': bad types"),
        ({"types": {"structural": "query", "semantic": "attr"}}, "question '1', types: detailed is missing"),
        ({"groups": {"global": 3, "local": None}}, "question '1', groups: bad global: found 3"),
        ({"entailed": [7]}, "question '1': bad entailed: found 7, expected a list of texts"),
        ({"imageId": 15}, "question '1': bad imageId"),
        ({"question": " "}, "question '1': bad question"),
    ],
)
def test_invalid_records_are_named(data, tmp_path, changes, message):
    write(data / "gqa" / "questions1.2", "train_balanced_questions.json", {"1": question(**changes)})
    with pytest.raises(DataError, match=message):
        build(data, tmp_path, splits="train")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "no questions"),
        ("[]", "not an object"),
        ('{"1": 3}', "question '1': not an object"),
        ('{"1": {"question"', "member '1': .*the file ends too early"),
        ('{"1": {}, "1": {}}', "question '1': question is missing"),
        ('{"a": 1} x', "question 'a': not an object"),
    ],
)
def test_damaged_files_are_named(tmp_path, text, message):
    path = tmp_path / "train_balanced_questions.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as error:
        list(read_questions(path))
    assert path.name in str(error.value)


def test_missing_files_are_named(data, tmp_path):
    (data / "gqa" / "questions1.2" / "train_all_questions" / "train_all_questions_7.json").unlink()
    with pytest.raises(
        MissingFileError, match=r"train_all_questions_7\.json: the file is missing.*questions1\.2\.zip"
    ):
        build(data, tmp_path, "all")
    with pytest.raises(DataError, match="has no such split: found 'testdev'"):
        build(data, tmp_path, splits="testdev")


def test_questions_are_read_one_at_a_time(tmp_path):
    path = tmp_path / "q.json"
    path.write_text(json.dumps({str(number): question(semanticStr="x" * 2000) for number in range(6000)}))
    tracemalloc.start()
    assert sum(1 for _ in read_questions(path)) == 6000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 12e6 and peak < path.stat().st_size / 2


def test_predictions_come_back_as_they_were_written(tmp_path):
    answers = {"07333408": "yes", "7333408": "light blue"}
    write_predictions(tmp_path / "predictions.json", answers)
    assert read_predictions(tmp_path / "predictions.json") == answers
    first = json.loads((tmp_path / "predictions.json").read_text())[0]
    assert first == {"questionId": "07333408", "prediction": "yes"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '[{"questionId": "1", "prediction": "a"}, {"questionId": "1", "prediction": "b"}]',
            "element 2: the question has two answers",
        ),
        ('[{"questionId": "1"}]', "element 1: prediction is missing"),
        ('[{"questionId": 1, "prediction": "a"}]', "element 1: bad questionId"),
        ('{"a": [{"questionId": "1", "prediction": "a"}]}', "not a list of predictions"),
    ],
)
def test_wrong_predictions_are_named(tmp_path, content, message):
    path = tmp_path / "predictions.json"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_predictions(path)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VQA v2's builder and its file of predictions, on files in the official layout."""

import json
import shutil

import pytest

from grounded_attention.dataset_scripts.builders.vqa_v2 import VQAv2
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.files.records import VQA_NAMES, read_answer_file, write_answer_file
from tests.helpers.built import built


def question(number, image, text="What is this?"):
    return {"question_id": number, "image_id": image, "question": text}


def annotation(number, image, *answers):
    given = [{"answer": a, "answer_id": place + 1, "answer_confidence": "yes"} for place, a in enumerate(answers)]
    kinds = {"question_type": "what is", "answer_type": "other", "multiple_choice_answer": answers[0]}
    return {"question_id": number, "image_id": image, "answers": given, **kinds}


def write(folder, split, questions, annotations=None):
    folder.mkdir(exist_ok=True)
    path = folder / f"v2_OpenEnded_mscoco_{split}_questions.json"
    path.write_text(json.dumps({"questions": questions, "data_type": "mscoco"}))
    if annotations is not None:
        (folder / f"v2_mscoco_{split}_annotations.json").write_text(json.dumps({"annotations": annotations}))
    return folder


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "vqa"
    answers = ["red"] * 6 + ["dark red"] * 4
    annotations = [annotation(9001, 9, *answers), annotation(9000, 9, *answers)]
    write(folder, "train2014", [question(9000, 9), question(9001, 9)], annotations)
    write(folder, "val2014", [question(30000, 30, "How many?")], [annotation(30000, 30, *["2"] * 10)])
    return folder


def build(data_dir, tmp_path, **options):
    return built(VQAv2, data_dir, tmp_path / "cache", **options)


def test_questions_are_joined_with_their_answers(data, tmp_path):
    splits = build(data, tmp_path).as_dataset()
    assert set(splits) == {"train", "validation"}
    assert splits["train"]["example_id"][:] == ["9000", "9001"]
    assert splits["train"][0]["answers"] == ["red"] * 6 + ["dark red"] * 4
    row = splits["validation"][0]
    assert row["image_id"] == "30"
    assert row["text"] == "How many?"
    assert row["question_type"] == "what is"


def test_test_questions_have_no_answers_and_images_of_the_test_set(data, tmp_path):
    write(data, "test2015", [question(1000, 1), question(2000, 2)])
    write(data, "test-dev2015", [question(2000, 2)])
    builder = build(data, tmp_path, image_id_format="file_stem", splits=["test", "test_dev", "validation"])
    splits = builder.as_dataset()
    assert splits["test_dev"]["image_id"][:] == ["COCO_test2015_000000000002"]
    assert splits["validation"]["image_id"][:] == ["COCO_val2014_000000000030"]
    assert splits["test"]["answers"][:] == [[], []]
    assert builder.report["test"]["questions"] == 2


@pytest.mark.parametrize(
    "questions, answered, message",
    [
        ([question(1, 1)], [], "questions, element 1: the question has no answers: found '1'"),
        ([question(1, 1)] * 2, [1], "questions, element 2: the question occurs twice"),
        ([question(1, 1)], [1, 1], "annotations, element 2: the question has two answers"),
        ([question(1, 1)], [1, 2], "answers to 1 questions"),
        ([], [], "no questions"),
        ([question(1, 1, " ")], [1], "questions, element 1: bad question"),
    ],
)
def test_questions_and_answers_that_do_not_fit_are_named(data, tmp_path, questions, answered, message):
    write(data, "train2014", questions, [annotation(number, 1, "x") for number in answered])
    with pytest.raises(DataError, match=message):
        build(data, tmp_path, splits="train")


def test_missing_files_are_named(data, tmp_path):
    (data / "v2_mscoco_val2014_annotations.json").unlink()
    with pytest.raises(MissingFileError, match=r"v2_mscoco_val2014_annotations\.json: the file is missing"):
        build(data, tmp_path)
    with pytest.raises(DataError, match="has no such split: found 'test'"):
        build(data, tmp_path, splits="test")


def test_predictions_come_back_as_they_were_written(tmp_path):
    answers = {"30000": "two", "9001": "dark red", "train-8": "of own rows"}
    write_answer_file(tmp_path / "predictions.json", answers, **VQA_NAMES)
    assert read_answer_file(tmp_path / "predictions.json", **VQA_NAMES) == answers
    assert json.loads((tmp_path / "predictions.json").read_text())[0] == {"question_id": 30000, "answer": "two"}


WRONG_PREDICTIONS = {
    '[{"question_id": 1, "answer": "a"}, {"question_id": 1, "answer": "b"}]': "element 2",
    '[{"question_id": 1}]': "element 1: answer is missing",
    '[{"question_id": 1.5, "answer": "a"}]': "element 1: bad question_id",
    '{"answers": [{"question_id": 1, "answer": "a"}]}': "not a list",
    '[{"question_id": 1, "answer": "a"': "predictions.json",
}


@pytest.mark.parametrize("content, message", WRONG_PREDICTIONS.items())
def test_wrong_predictions_are_named(tmp_path, content, message):
    path = tmp_path / "predictions.json"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_answer_file(path, **VQA_NAMES)


def test_real_questions_read_right(shared, tmp_path):
    source = shared / "real" / "vqa"
    folder = tmp_path / "vqa"
    folder.mkdir()
    for kind in ("OpenEnded_mscoco_train2014{}_questions", "mscoco_train2014{}_annotations"):
        shutil.copy(source / f"v2_{kind.format('_3000')}.json", folder / f"v2_{kind.format('')}.json")
    rows = build(folder, tmp_path, splits="train").as_dataset("train")
    predictions = read_answer_file(source / "golden_predictions.json", **VQA_NAMES)
    assert set(rows["example_id"]) == set(predictions)
    assert {len(answers) for answers in rows["answers"]} == {10}

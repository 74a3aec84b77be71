# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""GQA's builder and its file of predictions, on files in the official layout, and the scenes' questions."""

import json

import pytest

from grounded_attention.dataset_scripts.builders.gqa import GQA, read_questions
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.files.records import GQA_NAMES, read_answer_file, write_answer_file
from grounded_attention.dataset_scripts.scenes.annotators import RELATION_WORDS
from grounded_attention.dataset_scripts.scenes.dataset import write_scenes
from grounded_attention.dataset_scripts.scenes.language import meaning_of, referents
from grounded_attention.dataset_scripts.scenes.records import image_id, scene_record, split_numbers
from grounded_attention.dataset_scripts.scenes.world import relation_holds
from grounded_attention.metrics.gqa_scores import gqa_scores
from tests.helpers.built import built

QUESTION = """{"question": "What color is the car?", "imageId": "n15", "isBalanced": true, "answer": "red",
    "fullAnswer": "The car is red.", "entailed": ["0002", "0001"], "equivalent": ["0001"],
    "semantic": [{"operation": "select", "dependencies": [], "argument": "car (1)"}], "semanticStr": "select: car (1)",
    "groups": {"global": null, "local": "06-car_color"},
    "annotations": {"answer": {}, "question": {"4": "1"}, "fullAnswer": {}},
    "types": {"detailed": "directOf", "semantic": "attr", "structural": "query"}}"""


def question(**changes):
    return json.loads(QUESTION) | changes


def write(folder, name, content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content))
    return folder


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "gqa" / "questions1.2"
    other = question(imageId="7", answer="yes", isBalanced=False, groups={"global": "color", "local": None})
    write(folder, "train_balanced_questions.json", {"0001": question()})
    for part in range(10):
        write(
            folder / "train_all_questions",
            f"train_all_questions_{part}.json",
            {f"0{part}": question(imageId=str(part))},
        )
    write(folder, "val_balanced_questions.json", {"0001": question()})
    write(folder, "val_all_questions.json", {"0001": question(), "07333408": other})
    bare = {"question": "Is it?", "imageId": "n3", "isBalanced": True}
    write(folder, "test_balanced_questions.json", {"000123": bare})
    return tmp_path


def build(data_dir, tmp_path, name="balanced", **options):
    return built(GQA, data_dir, tmp_path / "cache", config_name=name, **options)


ROW = """{"example_id": "0001", "image_id": "n15", "text": "What color is the car?", "answer": "red",
    "structural_type": "query", "semantic_type": "attr", "detailed_type": "directOf", "global_group": "",
    "entailed": ["0002", "0001"], "valid": [], "plausible": [], "is_balanced": true,
    "semantic": [{"operation": "select", "argument": "car (1)", "dependencies": []}],
    "annotations": [{"part": "question", "tokens": "4", "object": "1", "box": []}],
    "phrases": [{"text": "car", "start": 18, "end": 21, "sentence": 0, "boxes": []}]}"""


def test_rows_have_what_the_official_metrics_read(data, tmp_path):
    splits = build(data, tmp_path).as_dataset()
    assert set(splits) == {"train", "validation", "test"}
    assert splits["train"][0] == json.loads(ROW)
    bare = {"example_id": "000123", "answer": "", "structural_type": "", "entailed": []}
    assert bare.items() <= splits["test"][0].items()


def test_all_questions_come_from_ten_files_of_training(data, tmp_path):
    builder = build(data, tmp_path, "all")
    splits = builder.as_dataset()
    assert set(splits) == {"train", "validation"}
    assert splits["train"]["image_id"][:] == [str(part) for part in range(10)]
    assert splits["validation"]["is_balanced"][:] == [True, False]
    assert splits["validation"][1]["global_group"] == "color"
    assert {"questions": 2, "balanced": 1}.items() <= builder.report["validation"].items()


def test_choices_are_joined_where_their_file_exists(data, tmp_path):
    choices = json.loads('{"0001": {"valid": ["red", "blue"], "plausible": ["red"]}}')
    write(data / "eval", "val_choices.json", choices)
    row = build(data, tmp_path, splits="val").as_dataset("validation")[0]
    assert row["valid"] == ["red", "blue"]
    assert row["plausible"] == ["red"]
    write(data / "eval", "val_choices.json", {"9": choices["0001"]})
    with pytest.raises(DataError, match=r"val_choices\.json: no choices of a balanced question.*'0001'"):
        build(data, tmp_path, splits="val")


GRAPHS = """{"n15": {"width": 100, "height": 80, "objects": {
    "1": {"name": "car", "x": 10, "y": 20, "w": 40, "h": 60, "attributes": [], "relations": []},
    "2": {"name": "car", "x": 10, "y": 20, "w": 40, "h": 60, "attributes": [], "relations": []}}}}"""


def test_scene_graphs_give_the_boxes_of_annotations(data, tmp_path):
    graphs = json.loads(GRAPHS)
    write(data / "sceneGraphs", "val_sceneGraphs.json", graphs)
    [annotation] = build(data, tmp_path, splits="val").as_dataset("validation")[0]["annotations"]
    assert annotation["box"] == pytest.approx([0.1, 0.25, 0.5, 1.0])
    del graphs["n15"]["objects"]["2"]["w"]
    write(data / "sceneGraphs", "val_sceneGraphs.json", graphs)
    with pytest.raises(DataError, match=r"image 'n15', objects, 2: w is missing"):
        build(data, tmp_path, splits="val")


INVALID = {
    '{"semantic": [{"operation": "select"}]}': "question '1', step 1: dependencies is missing",
    '{"annotations": {"question": {"4": 1}}}': "question '1', annotations, question: bad 4",
    '{"answer": null}': "question '1': bad answer: expected a text",
    '{"types": {"structural": "query", "semantic": "attr"}}': "question '1', types: detailed is missing",
    '{"groups": {"global": 3, "local": null}}': "question '1', groups: bad global: found 3",
    r'{"entailed": ["\ud800"]}': "question '1': bad entailed: .* a text without unpaired surrogates",
    '{"question": " "}': "question '1': bad question",
}


@pytest.mark.parametrize("changes, message", INVALID.items())
def test_invalid_records_are_named(data, tmp_path, changes, message):
    record = question(**json.loads(changes))
    write(data / "gqa" / "questions1.2", "train_balanced_questions.json", {"1": record})
    with pytest.raises(DataError, match=message):
        build(data, tmp_path, splits="train")


DAMAGED = {
    "{}": "no questions",
    '{"1": 3}': "question '1': not an object",
    '{" ": {}}': "question ' ': an empty id of a question",
    '{"1": {"question"': "member '1': .*the file ends too early",
    '{"1": {}, "1": {}}': "question '1': question is missing",
}


@pytest.mark.parametrize("text, message", DAMAGED.items())
def test_damaged_files_are_named(tmp_path, text, message):
    path = tmp_path / "train_balanced_questions.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as error:
        list(read_questions(path))
    assert path.name in str(error.value)


def test_missing_files_are_named(data, tmp_path):
    (data / "gqa" / "questions1.2" / "train_all_questions" / "train_all_questions_7.json").unlink()
    with pytest.raises(MissingFileError, match=r"train_all_questions_7\.json"):
        build(data, tmp_path, "all")
    with pytest.raises(DataError, match="has no such split: found 'testdev'"):
        build(data, tmp_path, splits="testdev")


def test_predictions_come_back_as_they_were_written(tmp_path):
    answers = {"07333408": "yes", "7333408": "light blue"}
    write_answer_file(tmp_path / "predictions.json", answers, **GQA_NAMES)
    assert read_answer_file(tmp_path / "predictions.json", **GQA_NAMES) == answers
    first = json.loads((tmp_path / "predictions.json").read_text())[0]
    assert first == {"questionId": "07333408", "prediction": "yes"}


# Scenes

IMAGES = 40


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    root = tmp_path_factory.mktemp("scenes")
    write_scenes(root, IMAGES, 0)
    return root


@pytest.fixture(scope="module")
def composed(scenes, tmp_path_factory):
    """All questions of each split."""
    splits = build(scenes, tmp_path_factory.mktemp("cache"), "all").as_dataset()
    return {name: list(rows) for name, rows in splits.items()}


def scene_of(row):
    return next(record.scene for record in RECORDS if record.image_id == row["image_id"])


RECORDS = [scene_record(0, number, IMAGES) for number in range(IMAGES)]


def only_object(scene, phrase):
    """The number of the only object that a phrase fits."""
    [members] = referents(scene, meaning_of(phrase))
    [number] = members
    return number


def right_answer(scene, text):
    """The answer by a second reading of the question; None if this reading does not know the question."""
    text = text.removesuffix("?")
    if text.startswith("What kind of ground"):
        return scene.ground
    if text.startswith("Is there "):
        if referents(scene, meaning_of(text.removeprefix("Is there "))):
            return "yes"
        return "no"
    if text.startswith("Are there "):
        looks = text.removeprefix("Are there ").split(" and ")
        if all(referents(scene, meaning_of(look)) for look in looks):
            return "yes"
        return "no"
    for word, attribute in (("color", "colours"), ("shape", "shapes"), ("size", "sizes"), ("pattern", "textures")):
        if text.startswith(f"What {word} is "):
            phrase, *options = text.removeprefix(f"What {word} is ").split(", ")
            [name] = getattr(scene.objects[only_object(scene, phrase)], attribute)
            assert not options or name in options
            return name
    for relation, listed in RELATION_WORDS.items():
        for words in sorted(listed, key=len, reverse=True):
            first, found, second = text.partition(f" {words} the ")
            if found and first.startswith("Is the "):
                objects = only_object(scene, first.removeprefix("Is ")), only_object(scene, f"the {second}")
                if relation_holds(scene, relation, *objects):
                    return "yes"
                return "no"
            if found and first == "What is":
                target = only_object(scene, f"the {second}")
                others = [n for n in range(len(scene.objects)) if n != target]
                [other] = [n for n in others if relation_holds(scene, relation, n, target)]
                return scene.objects[other].shapes[0]
    return None


def test_answers_follow_from_the_scene(composed):
    rows = [row for name in ("train", "validation", "testdev") for row in composed[name]]
    known = 0
    for row in rows:
        expected = right_answer(scene_of(row), row["text"])
        assert expected in (None, row["answer"]), row
        known += expected is not None
    assert known > 0.6 * len(rows) > 100


def test_right_answers_are_consistent_valid_and_plausible(composed):
    for name in ("validation", "testdev"):
        figures = gqa_scores({row["example_id"]: row["answer"] for row in composed[name]}, composed[name])
        ones = {"accuracy", "binary", "open", "consistency", "validity", "plausibility"}
        assert {figures[one] for one in ones} == {1.0}
        assert figures["distribution"] == 0.0
        assert any(len(row["entailed"]) > 1 and row["is_balanced"] for row in composed[name])
        assert all(set(row["plausible"]) <= set(row["valid"]) for row in composed[name])


def test_splits_are_those_of_the_images(composed):
    images = {split: {image_id(n) for n in numbers} for split, numbers in split_numbers(0, IMAGES).items()}
    found = {split: {row["image_id"] for row in rows} for split, rows in composed.items()}
    assert found["train"] == images["train"]
    assert found["validation"] == images["val"]
    assert found["test"].isdisjoint(found["testdev"])
    assert found["test"] | found["testdev"] == images["test"]
    assert {row["answer"] for row in composed["test"]} == {""}


def test_balanced_questions_are_some_of_all(composed, scenes, tmp_path):
    balanced = build(scenes, tmp_path).as_dataset()
    for split, rows in composed.items():
        assert all(row["example_id"].startswith("00") for row in rows)
        assert balanced[split]["example_id"][:] == sorted(row["example_id"] for row in rows if row["is_balanced"])

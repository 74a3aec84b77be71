# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VCR's builder on generated files in the official layout; nothing of VCR itself may be redistributed."""

import json

import pytest

from grounded_attention.dataset_scripts.builders.vcr import NEUTRAL_NAMES, VCR, VCRConfig, object_words
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.tasks.vcr import pair_tags
from tests.helpers.built import built
from tests.helpers.processing_helpers import make_processor
from tests.helpers.vcr_files import CLIP, OBJECTS, question, write, write_image


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    write(folder, "train", [question(0), question(1)])
    write(folder, "val", [question(0, "val")])
    write_image(folder)
    return folder


def build(data_dir, tmp_path, **options):
    return built(VCR, data_dir, tmp_path / "cache", **options)


def named(row, sentence=0):
    """The words of the question, or of a choice, that name objects, with the numbers of these."""
    text = [row["text"], *row["choices"]][sentence]
    found = []
    for phrase in row["phrases"]:
        if phrase["sentence"] == sentence:
            assert text[phrase["start"] : phrase["end"]] == phrase["text"]
            found.append((phrase["text"], phrase["regions"]))
    return found


def test_objects_are_named_and_tagged(data, tmp_path):
    row = build(data, tmp_path, splits="train").as_dataset("train")[0]
    first, _, second = object_words(OBJECTS, "train-0", neutral=True)
    assert row["text"] == f"Why do {first} and {second} like car ?"
    assert row["choices"] == ["No .", f"{second} 's hungry .", "car", "Yes ."]
    assert named(row) == [(first, [0]), (second, [2]), ("car", [1])]
    assert named(row, 1) == named(row, 4) == []
    assert named(row, 2) == [(second, [2])]
    assert named(row, 3) == [("car", [1])]
    about = {"label": 1, "mode": "answer", "answer": -1, "example_id": "train-0", "image_id": "film_00.01@0"}
    assert about.items() <= row.items()
    assert row["file_name"] == f"{CLIP}.jpg"


def test_boxes_are_divided_and_clipped(data, tmp_path):
    builder = build(data, tmp_path, splits="train")
    row = builder.as_dataset("train")[0]
    assert row["width"] == 200
    assert row["height"] == 100
    assert row["objects"] == OBJECTS
    first, second, third = row["boxes"]
    assert first == pytest.approx([0.1, 0.1, 0.5, 0.5])
    assert second == pytest.approx([0.0, 0.6, 1.0, 0.9])
    assert third == pytest.approx([0.75, 0.0, 1.0, 1.0])
    examples = {"boxes_clipped": ["train-0", "train-1"]}
    assert builder.report["train"] == {"questions": 2, "boxes_clipped": 2, "examples": examples}


def test_rationales_follow_the_right_answer(data, tmp_path):
    answers = build(data, tmp_path, splits="train").as_dataset("train")[0]
    row = build(data, tmp_path, splits="train", mode="rationale").as_dataset("train")[0]
    assert row["text"] == f"{answers['text']} {answers['choices'][1]}"
    assert named(row) == named(answers) + named(answers, 2)
    first, car, second = object_words(OBJECTS, "train-0", neutral=True)
    assert row["choices"][3] == f"{first} and {car} and {second}"
    assert row["label"] == 3
    assert row["mode"] == "rationale"
    assert row["answer"] == 1
    assert row["example_id"] == "train-0"


def test_test_has_no_labels_and_every_answer_before_the_rationales(data, tmp_path):
    write(data, "test", [question(0, "test")])
    rows = build(data, tmp_path, splits="test").as_dataset("test")
    assert rows[0]["label"] == -1
    assert len(rows) == 1
    choices = rows[0]["choices"]
    rows = build(data, tmp_path, splits="test", mode="rationale").as_dataset("test")
    assert len(rows) == 4
    for number, row in enumerate(rows):
        assert row["example_id"] == f"test-0_a{number}"
        assert row["answer"] == number
        assert row["label"] == -1
        assert row["text"].endswith(f"? {choices[number]}")


def test_splits_are_those_of_existing_files(data, tmp_path):
    assert set(build(data, tmp_path).as_dataset()) == {"train", "validation"}
    with pytest.raises(DataError, match="has no such split: found 'test'"):
        build(data, tmp_path, splits="test")


@pytest.mark.parametrize(
    "image_id_format, ids",
    {"img_id": ["val-0", "val-1"], "number": ["1000000", "1000001"], "file_stem": ["film_00.01@0"] * 2}.items(),
)
def test_image_ids_fit_the_features(data, tmp_path, image_id_format, ids):
    write(data, "val", [question(1, "val"), question(2, "val")])
    rows = build(data, tmp_path, splits="validation", image_id_format=image_id_format).as_dataset("validation")
    assert rows["image_id"][:] == ids


def test_names_depend_on_the_item_alone():
    persons = ["person"] * 14
    words = object_words(persons, "train-7", neutral=True)
    assert words[13] == words[0]
    assert words == object_words(persons, "train-7", neutral=True)
    starts = {object_words(persons, f"train-{number}", neutral=True)[0] for number in range(200)}
    assert starts == set(NEUTRAL_NAMES)
    # As the public code: names in their order, persons in the order of the objects, other objects use no name up.
    start = NEUTRAL_NAMES.index(words[0])
    assert words[:13] == [*NEUTRAL_NAMES[start:], *NEUTRAL_NAMES[:start]]
    mixed = object_words(["car", "person", "dog", "person"], "train-7", neutral=True)
    assert mixed == ["car", words[0], "dog", words[1]]


@pytest.mark.parametrize(
    "boxes, without",
    {
        "[]": 3,
        "[[20, 10, 100, 50]]": 2,
        "[[20, 10, 100, 50, 1], null, []]": 2,
        "[[20, 10, 100, 50], [5, 5, 5, 9], [199.5, 0, 250, 9]]": 2,
    }.items(),
)
def test_objects_without_boxes_have_the_whole_image(data, tmp_path, boxes, without):
    write_image(data, boxes=json.loads(boxes))
    builder = build(data, tmp_path, splits="val")
    found = builder.as_dataset("validation")[0]["boxes"]
    assert found[-without:] == [[0, 0, 1, 1]] * without
    assert builder.report["validation"]["objects_without_boxes"] == without


WRONG_QUESTIONS = {
    '{"annot_id": "train-0"}': r"train\.jsonl, line 2: the question occurs twice: found 'train-0'",
    '{"question": ["Why", [3], "?"]}': "line 2: question refers to an object that does not exist: found 3",
    '{"question": ["Why", [true]]}': "line 2: question refers to an object that does not exist: found True",
    '{"question": ["Why", 1]}': "line 2: bad question: found 1",
    '{"question": ["Why", []]}': r"line 2: bad question: found \[\]",
    '{"question": [" "]}': "line 2: no words in question",
    r'{"question": ["\ud800"]}': "line 2: bad question: .* without unpaired surrogates",
    '{"answer_choices": [["a"], ["a"], ["a"]]}': "line 2: wrong number of answer_choices: found 3, expected 4",
    '{"answer_choices": [["a"], ["b"], ["c"], "d"]}': "line 2: bad answer_choices 3: found 'd'",
    '{"answer_label": 4}': "line 2: impossible answer_label: found 4, expected 0 to 3",
    '{"objects": ["person", "car"]}': "line 2: objects differ from those of its image",
    '{"metadata_fn": "film/none.json"}': "line 2: .*none.json",
}


@pytest.mark.parametrize("changes, message", WRONG_QUESTIONS.items())
def test_wrong_questions_are_named_by_line(data, tmp_path, changes, message):
    write(data, "train", [question(0), question(1, **json.loads(changes))])
    with pytest.raises(DataError, match=message):
        build(data, tmp_path, splits="train")


WRONG_BOXES = {
    '{"boxes": [[1, 2, 3]]}': r"film_00\.01@0\.json, image: bad box 0: found \[1, 2, 3\]",
    '{"boxes": [[1, 2, 3, 4], [50, 2, 20, 4, 1.0]]}': "box 1 is inverted",
    '{"boxes": [[0.2, 0.3, 1.0, 0.8, 0.9], [0, 0, 1, 1]]}': "the boxes look normalised",
    '{"boxes": [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]]}': "more boxes than names: found 4",
    '{"boxes": [[NaN, 0, 1, 1]]}': "not JSON: NaN is not JSON",
    '{"width": 0}': "impossible width: found 0",
    '{"names": ["person", 3]}': "bad names",
}


@pytest.mark.parametrize("changes, message", WRONG_BOXES.items())
def test_wrong_boxes_are_named(data, tmp_path, changes, message):
    write_image(data, **json.loads(changes))
    with pytest.raises(DataError, match=message):
        build(data, tmp_path, splits="train")


DAMAGED = {
    b'{"annot_id": ': "line 1: not JSON",
    b'{"annot_id": "\xff"}': "line 1: not valid UTF-8",
    b"": "no questions",
}


@pytest.mark.parametrize("content, message", DAMAGED.items())
def test_damaged_files_are_named(data, tmp_path, content, message):
    (data / "vcr1annots" / "train.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        build(data, tmp_path, splits="train")


WRONG_RATIONALES = {
    '{"rationale_label": -1}': "line 1: impossible rationale_label",
    '{"answer_choices": [["a"], 2, ["c"], ["d"]]}': "line 1: bad answer_choices 1: found 2",
    '{"answer_label": 9}': "line 1: impossible answer_label",
}


@pytest.mark.parametrize("changes, message", WRONG_RATIONALES.items())
def test_wrong_questions_of_rationales_are_named(data, tmp_path, changes, message):
    write(data, "train", [question(0, **json.loads(changes))])
    with pytest.raises(DataError, match=message):
        build(data, tmp_path, splits="train", mode="rationale")


def test_wrong_numbers_of_images_are_named(data, tmp_path):
    write(data, "train", [question(0, img_id="val-0")])
    with pytest.raises(DataError, match="line 1: bad img_id: found 'val-0', expected train- and a number"):
        build(data, tmp_path, splits="train", image_id_format="number")


def test_missing_files_and_wrong_options_are_named(data, tmp_path):
    with pytest.raises(DataError, match="bad option mode: found 'both', expected 'answer' or 'rationale'"):
        build(data, tmp_path, mode="both")
    with pytest.raises(DataError, match="bad option names"):
        build(data, tmp_path, names="Casey")
    with pytest.raises(DataError, match="data_dir is missing"):
        VCRConfig(name="default").check()
    (data / "vcr1annots" / "val.jsonl").unlink()
    with pytest.raises(MissingFileError, match=r"val\.jsonl: the file is missing; get annotations"):
        build(data, tmp_path)
    (data / "vcr1images").rename(data / "images")
    with pytest.raises(MissingFileError, match="vcr1images: the folder is missing"):
        build(data, tmp_path, splits="train")


def test_tags_show_the_processor_the_regions(data, tmp_path):
    """A row's tags, handed on, make each name see the region of its object."""
    row = build(data, tmp_path, splits="train", names="category").as_dataset("train")[0]
    processor = make_processor(region_feature_size=2)
    regions = {"region_features": [[0.0, 0.0]] * 3, "region_boxes": row["boxes"]}
    inputs = processor(row["text"], row["choices"][1], tags=pair_tags(row, 1), **regions)
    # [CLS] why do person and person like car ? [SEP] person ' s hungry . [SEP]
    assert inputs["token_regions"].tolist() == [[-1, -1, -1, 1, -1, 3, -1, 2, -1, -1, 3, -1, -1, -1, -1, -1]]

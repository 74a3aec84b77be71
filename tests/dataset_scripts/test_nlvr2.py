# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""NLVR2: its builder on official files and LXMERT's, its file of predictions, and the scenes' statements."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from grounded_attention.commands.evaluate import main as evaluate
from grounded_attention.dataset_scripts.builders.nlvr2 import NLVR2, write_predictions
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.scenes.dataset import scene_record, write_scenes
from grounded_attention.dataset_scripts.scenes.language import meaning_of
from grounded_attention.dataset_scripts.scenes.statements import KINDS, count_of, state
from grounded_attention.dataset_scripts.scenes.world import Scene, SceneObject
from tests.helpers.built import built

OFFICIAL = """{"identifier": "dev-850-0-0", "label": "False", "sentence": "At least one bottle is green.",
    "left_url": "https://example.org/a/left%20one.jpg", "right_url": "https://example.org/b.c.png", "writer": "61",
    "validation": {"61": "False"}, "synset": "beer bottle", "query": "some beer bottles38"}"""
LXMERT = """{"identifier": "dev-850-0-0", "img0": "dev-850-0-img0", "img1": "dev-850-0-img1", "label": 1,
    "sent": "Red.", "uid": "nlvr2_dev_0"}"""


def official(**changes):
    return json.loads(OFFICIAL) | changes


def write(folder, records, name="dev.json"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return folder


def build(data_dir, tmp_path, **options):
    return built(NLVR2, data_dir, tmp_path / "cache", **options)


def test_official_lines_become_rows_with_two_images(tmp_path):
    second = official(identifier="dev-850-1-0", label="True")
    folder = write(tmp_path / "nlvr2" / "data", [official(), second])
    write(folder, [official(identifier="train-1-2-1", directory=3)], "train.json")
    unlabelled = official(identifier="test1-0-0-0")
    del unlabelled["label"]
    write(folder, [unlabelled], "test1.json")
    builder = build(tmp_path, tmp_path)
    splits = builder.as_dataset()
    assert set(splits) == {"train", "validation", "test"}
    expected = """{"example_id": ["dev-850-0-0", "dev-850-1-0"], "image_id": ["dev-850-0", "dev-850-1"],
        "image_ids": [["dev-850-0-img0", "dev-850-0-img1"], ["dev-850-1-img0", "dev-850-1-img1"]],
        "text": ["At least one bottle is green.", "At least one bottle is green."], "label": [0, 1]}"""
    assert splits["validation"][:] == json.loads(expected)
    assert splits["test"]["label"][:] == [-1]
    assert builder.report["validation"] == {"statements": 2, "true": 1, "false": 1, "examples": {}}


def test_images_can_have_the_names_of_their_urls(tmp_path):
    write(tmp_path, [official()])
    rows = build(tmp_path, tmp_path, splits="validation", image_id_format="url_stem").as_dataset("validation")
    assert rows[0]["image_ids"] == ["left%20one", "b.c"]


def test_lxmert_lists_give_the_same_rows(tmp_path):
    lines = write(tmp_path / "official", [official(label="True", sentence="Red.")])
    expected = build(lines, tmp_path, splits="validation").as_dataset("validation")
    (tmp_path / "valid.json").write_text(f" \n[{LXMERT}]")
    assert build(tmp_path, tmp_path, splits="validation").as_dataset("validation")[:] == expected[:]


BAD_RECORDS = {
    OFFICIAL.replace('"label": "False"', '"label": "Maybe"'): "line 1: bad label .*: found 'Maybe'",
    OFFICIAL.replace("dev-850-0-0", "dev-850-0"): "line 1: bad identifier: found 'dev-850-0', expected <split>-<set>-",
    f"{OFFICIAL}\n{OFFICIAL}": "line 2: the example occurs twice: found 'dev-850-0-0'",
    "": "no statements",
    '["no object"]': "(element 1|line 1)",
}


@pytest.mark.parametrize("text, message", BAD_RECORDS.items())
def test_bad_records_are_named(tmp_path, text, message):
    (tmp_path / "dev.json").write_text(text.replace(",\n", ","))
    with pytest.raises(DataError, match=rf"dev\.json.*{message}"):
        build(tmp_path, tmp_path, splits="validation")


def test_bad_labels_of_lxmert_are_named(tmp_path):
    (tmp_path / "valid.json").write_text(f"[{LXMERT.replace('1,', '2,')}]")
    with pytest.raises(DataError, match=r"valid\.json.*element 1: bad label"):
        build(tmp_path, tmp_path, splits="validation")


def test_missing_files_and_options_are_named(tmp_path):
    with pytest.raises(MissingFileError, match=r"train.json: the file is missing.*github.com/lil-lab/nlvr"):
        build(tmp_path, tmp_path)
    with pytest.raises(DataError, match="image_id_format: found 'name', expected 'identifier' or 'url_stem'"):
        build(tmp_path, tmp_path, image_id_format="name")
    record = official()
    del record["right_url"]
    with pytest.raises(DataError, match="right_url is missing"):
        build(write(tmp_path, [record]), tmp_path, splits="val", image_id_format="url_stem")


def test_predictions_are_written_in_the_official_form(tmp_path):
    path = tmp_path / "predictions.csv"
    answers = {"dev-850-0-0": True, "dev-850-1-0": False}
    write_predictions(path, answers)
    assert path.read_text() == "dev-850-0-0,True\ndev-850-1-0,False\n"


# The scenes' statements


def item(shape="ball", colour="red", x=50.0, y=50.0, **changed):
    look = {"shapes": (shape,), "colours": (colour,), "sizes": ("small",), "textures": ("plain",)}
    return SceneObject(**{**look, "x": x, "y": y, "radius": 10.0, "tilt": 0.0, **changed})


def scene(*objects, ground="grass"):
    return Scene(200, 150, ground, "left", objects, 0)


BALL = item()
STAR = item("star", "blue", x=120)
ORANGE = item(colour="orange")
BETWEEN = item(colours=("red", "orange"))


@pytest.mark.parametrize(
    "phrase, objects, expected",
    [
        ("red ball", (BALL, STAR), 1),
        ("red ball", (STAR,), 0),
        ("red ball", (BALL, BETWEEN), None),
        ("ball", (BALL, BETWEEN, STAR), 2),
        ("blue object", (BALL, STAR, STAR), 2),
    ],
)
def test_counts_are_undecided_for_a_look_between_two_names(phrase, objects, expected):
    assert count_of(scene(*objects), meaning_of(phrase)) == expected


def statement_about(beginning, about):
    """A statement of this beginning about a scene, with what decides it."""
    for seed in range(4000):
        rng = random.Random(seed)
        draft = rng.choice(KINDS)(about, rng)
        if draft.text.startswith(beginning):
            return draft.holds
    raise AssertionError(f"no statement begins with {beginning!r}")


PICTURES = {
    "ball": scene(BALL),
    "star": scene(STAR),
    "orange": scene(ORANGE),
    "between": scene(BETWEEN),
}
# A statement -> what the left and the right picture show, and whether it holds.
STATEMENTS = {
    "There is a red ball in each": "ball ball yes, ball star no, between star no, ball between undecided",
    "There is a red ball in one": "ball star yes, ball ball no, star star no, ball between undecided",
    "There is a red ball in the left": "ball star yes, star ball no, between ball undecided",
    "There is a red ball in the right": "star ball yes",
    "No image shows a red ball": "star orange yes, star ball no, between ball no, between star undecided",
    "There is an image that shows a red ball.": "star ball yes, star orange no, between ball yes",
    "There are two red balls in the left": "ball ball no",
}
DECISIONS = {"yes": True, "no": False, "undecided": None}


@pytest.mark.parametrize("text, cases", STATEMENTS.items())
def test_statements_are_decided_by_the_scenes(text, cases):
    holds = statement_about(text, scene(BALL))
    for case in cases.split(", "):
        left, right, expected = case.split()
        assert holds(PICTURES[left], PICTURES[right]) is DECISIONS[expected], case


def test_relations_are_decided_by_the_scenes():
    above = scene(item(y=20), replace(STAR, x=50, y=120))
    below = scene(item(y=120), replace(STAR, x=50, y=20))
    holds = statement_about("There is an image that shows a red ball above a blue star", scene(BALL, STAR))
    assert holds(above, below)
    assert holds(below, above)
    assert not holds(below, below)


def test_grounds_are_decided_by_the_scenes():
    grass = scene()
    sand = scene(ground="sand")
    in_each = statement_about("There is sand in each", scene(BALL, ground="sand"))
    assert in_each(sand, sand)
    assert not in_each(sand, grass)
    in_the_right = statement_about("The right image shows sand", scene(BALL, ground="sand"))
    assert in_the_right(grass, sand)
    assert not in_the_right(sand, grass)


def test_a_statement_is_true_of_two_pairs_and_false_of_two():
    scenes = [(str(n), scene_record(5, n, 40).scene) for n in range(40)]
    for seed in range(60):
        pairs, labels = zip(*state(scenes, random.Random(seed)).pairs, strict=True)
        assert sorted(labels) == [False, False, True, True]
        assert len(set(pairs)) == 4
        assert all(left != right for left, right in pairs)
    assert state(scenes[:1], random.Random(0)) is None


def test_scenes_write_statements_that_the_builder_reads(tmp_path):
    write_scenes(tmp_path / "scenes", images=40, seed=3)
    splits = build(tmp_path / "scenes", tmp_path, image_id_format="url_stem").as_dataset()
    assert set(splits) == {"train", "validation", "test"}
    vocabulary = set((tmp_path / "scenes" / "vocab.txt").read_text().split())
    for name, on_disk in (("train", "train"), ("validation", "val"), ("test", "test")):
        rows = splits[name]
        images = (tmp_path / "scenes" / "flickr30k_entities" / f"{on_disk}.txt").read_text().split()
        assert {image for pair in rows["image_ids"] for image in pair} <= set(images)
        labels = rows["label"][:]
        assert labels.count(0) == labels.count(1) > 0
        assert len(set(rows["example_id"])) == len(rows) >= 2 * len(set(rows["text"]))
        words = " ".join(rows["text"]).lower().replace(".", " .").split()
        assert set(words) <= vocabulary


def official_scores(lines, labels):
    """The official script's figures: accuracy, and the share of sets whose pairs are all right."""
    predictions = dict(line.split(",") for line in lines)
    correct = []
    groups = {}
    for key, label in labels.items():
        split, number, _, sentence = key.split("-")
        correct.append(predictions[key] == label)
        groups.setdefault((split, number, sentence), []).append(correct[-1])
    return np.mean(correct), np.mean([all(group) for group in groups.values()])


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """A folder with forty statements, and their labels."""
    folder = tmp_path_factory.mktemp("labelled")
    labels = {f"dev-{n // 4}-{n % 4}-{n % 2}": str(n % 3 == 0) for n in range(40)}
    records = [{"identifier": key, "sentence": f"s {key}", "label": label} for key, label in labels.items()]
    write(folder, records)
    (folder / "train.json").write_text((folder / "dev.json").read_text().replace("dev-", "train-"))
    return folder, labels


def score(folder, lines, output):
    path = output / "answers.csv"
    path.write_text("\n".join(lines) + "\n")
    command = ["--predictions", str(path), "--task", "nlvr2", "--data-dir", str(folder), "--split", "validation"]
    return evaluate([*command, "--json", "--output", str(output / "out")])


def lines_of(labels):
    """A line for every label, of which each fifth is wrong."""
    lines = [f"{key},{label}" for key, label in labels.items()]
    for place in range(0, len(lines), 5):
        key, label = lines[place].split(",")
        lines[place] = f"{key},{label != 'True'}"
    return lines


def test_an_official_file_is_scored_as_the_official_script_does(labelled, tmp_path, capsys):
    folder, labels = labelled
    lines = lines_of(labels)
    assert score(folder, [*lines, "test1-0-0-0,true"], tmp_path) == 0
    numbers = json.loads(capsys.readouterr().out)["validation"]
    expected = official_scores(lines, labels)
    assert (numbers["nlvr2_accuracy"], numbers["nlvr2_consistency"]) == pytest.approx(expected)
    assert (tmp_path / "out" / "predictions_validation.csv").read_text().splitlines() == lines


@pytest.mark.parametrize(
    "more", [[], ["dev-0-0-0,True"] * 2, ["dev-0-0-0,True", "dev-9-9-9"], ["dev-0-0-0,True", "dev-9-9-9,1"]]
)
def test_a_file_of_wrong_lines_is_refused(labelled, tmp_path, more):
    folder, labels = labelled
    assert score(folder, [*lines_of(labels)[1:], *more], tmp_path) == 2

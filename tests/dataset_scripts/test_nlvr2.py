# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""NLVR2: its builder on official files and LXMERT's, its file of predictions, and the scenes' statements."""

import json
import random
from collections import Counter
from dataclasses import replace

import pytest

from grounded_attention.commands.evaluate import main as evaluate
from grounded_attention.dataset_scripts.builders.nlvr2 import NLVR2, write_predictions
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.scenes.dataset import scene_record, write_scenes
from grounded_attention.dataset_scripts.scenes.language import meaning_of
from grounded_attention.dataset_scripts.scenes.statements import KINDS, count_of, state
from grounded_attention.dataset_scripts.scenes.world import Scene, SceneObject


def official(identifier="dev-850-0-0", label="False", **changed):
    record = {
        "validation": {"61": "False"},
        "sentence": "At least one bottle is green.",
        "left_url": "https://example.org/a/left%20one.jpg",
        "right_url": "https://example.org/b.c.png",
        "writer": "61",
        "label": label,
        "synset": "beer bottle",
        "query": "some beer bottles38",
        "identifier": identifier,
    }
    return {name: value for name, value in {**record, **changed}.items() if value is not None}


def lxmert(identifier="dev-850-0-0", **changed):
    pair = identifier.rpartition("-")[0]
    record = {"identifier": identifier, "img0": f"{pair}-img0", "img1": f"{pair}-img1", "label": 1, "sent": "Red."}
    return {**record, "uid": "nlvr2_dev_0", **changed}


def write(folder, records, name="dev.json"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return folder


def build(data_dir, tmp_path, **options):
    builder = NLVR2(data_dir=str(data_dir), cache_dir=str(tmp_path / "cache"), **options)
    builder.download_and_prepare()
    return builder


def test_official_lines_become_rows_with_two_images(tmp_path):
    folder = write(tmp_path / "nlvr2" / "data", [official(), official("dev-850-1-0", "True")])
    write(folder, [official("train-1-2-1", directory=3)], "train.json")
    write(folder, [official("test1-0-0-0", label=None)], "test1.json")
    builder = build(tmp_path, tmp_path)
    splits = builder.as_dataset()
    assert set(splits) == {"train", "validation", "test"}
    assert splits["validation"][:] == {
        "example_id": ["dev-850-0-0", "dev-850-1-0"],
        "image_id": ["dev-850-0", "dev-850-1"],
        "image_ids": [["dev-850-0-img0", "dev-850-0-img1"], ["dev-850-1-img0", "dev-850-1-img1"]],
        "text": ["At least one bottle is green."] * 2,
        "label": [0, 1],
    }
    assert splits["test"]["label"][:] == [-1]
    assert builder.report["validation"] == {"statements": 2, "true": 1, "false": 1, "examples": {}}


def test_images_can_have_the_names_of_their_urls(tmp_path):
    write(tmp_path, [official()])
    rows = build(tmp_path, tmp_path, splits="validation", image_id_format="url_stem").as_dataset("validation")
    assert rows[0]["image_ids"] == ["left%20one", "b.c"]


def test_lxmert_lists_give_the_same_rows(tmp_path):
    write(tmp_path / "official", [official(label="True", sentence="Red.")])
    (tmp_path / "lxmert").mkdir()
    (tmp_path / "lxmert" / "valid.json").write_text(f" \n{json.dumps([lxmert()])}")
    found, expected = (
        build(tmp_path / name, tmp_path, splits="validation").as_dataset("validation")[:]
        for name in ("lxmert", "official")
    )
    assert found == expected


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([official(), official("dev-850-1-0", "Maybe")], r"dev.json, line 2: bad label of dev-850-1-0: found 'Maybe'"),
        ([official("dev-850-0")], "line 1: bad identifier: found 'dev-850-0', expected <split>-<set>-<pair>-"),
        ([official(), official()], "line 2: the example occurs twice: found 'dev-850-0-0'"),
        ([], "no statements"),
        ([["no object"]], "element 1|line 1"),
    ],
)
def test_bad_lines_are_named(tmp_path, lines, message):
    write(tmp_path, lines)
    with pytest.raises(DataError, match=message):
        build(tmp_path, tmp_path, splits="validation")


def test_bad_labels_of_a_list_are_named(tmp_path):
    (tmp_path / "valid.json").write_text(json.dumps([lxmert(), lxmert("dev-850-1-0", label=2)]))
    with pytest.raises(DataError, match=r"valid\.json, element 2: bad label"):
        build(tmp_path, tmp_path, splits="validation")


def test_missing_files_and_options_are_named(tmp_path):
    with pytest.raises(MissingFileError, match=r"train.json: the file is missing.*github.com/lil-lab/nlvr"):
        build(tmp_path, tmp_path)
    with pytest.raises(DataError, match="no such split"):
        build(write(tmp_path, [official()]), tmp_path, splits="test2")
    with pytest.raises(DataError, match="image_id_format: found 'name', expected 'identifier' or 'url_stem'"):
        build(tmp_path, tmp_path, image_id_format="name")
    with pytest.raises(DataError, match="right_url is missing"):
        build(write(tmp_path, [official(right_url=None)]), tmp_path, splits="val", image_id_format="url_stem")


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
    ("phrase", "objects", "expected"),
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


@pytest.mark.parametrize(
    ("text", "left", "right", "expected"),
    [
        ("There is a red ball in each", BALL, BALL, True),
        ("There is a red ball in each", BALL, STAR, False),
        ("There is a red ball in each", BETWEEN, STAR, False),
        ("There is a red ball in each", BALL, BETWEEN, None),
        ("There is a red ball in one", BALL, STAR, True),
        ("There is a red ball in one", BALL, BALL, False),
        ("There is a red ball in one", STAR, STAR, False),
        ("There is a red ball in one", BALL, BETWEEN, None),
        ("There is a red ball in the left", BALL, STAR, True),
        ("There is a red ball in the left", STAR, BALL, False),
        ("There is a red ball in the right", STAR, BALL, True),
        ("There is a red ball in the left", BETWEEN, BALL, None),
        ("No image shows a red ball", STAR, ORANGE, True),
        ("No image shows a red ball", STAR, BALL, False),
        ("No image shows a red ball", BETWEEN, BALL, False),
        ("No image shows a red ball", BETWEEN, STAR, None),
        ("There is an image that shows a red ball.", STAR, BALL, True),
        ("There is an image that shows a red ball.", STAR, ORANGE, False),
        ("There is an image that shows a red ball.", BETWEEN, BALL, True),
        ("There are two red balls in the left", BALL, BALL, False),
    ],
)
def test_statements_are_decided_by_the_scenes(text, left, right, expected):
    assert statement_about(text, scene(BALL))(scene(left), scene(right)) is expected


def test_relations_and_grounds_are_decided_by_the_scenes():
    above = scene(item(y=20), replace(STAR, x=50, y=120))
    below = scene(item(y=120), replace(STAR, x=50, y=20))
    holds = statement_about("There is an image that shows a red ball above a blue star", scene(BALL, STAR))
    assert holds(above, below)
    assert holds(below, above)
    assert not holds(below, below)
    each = statement_about("There is sand in each", scene(BALL, ground="sand"))
    assert each(scene(ground="sand"), scene(ground="sand"))
    assert not each(scene(ground="sand"), scene())
    side = statement_about("The right image shows sand", scene(BALL, ground="sand"))
    assert side(scene(), scene(ground="sand"))
    assert not side(scene(ground="sand"), scene())


def test_a_statement_is_true_of_two_pairs_and_false_of_two():
    scenes = [(str(n), scene_record(5, n, 40).scene) for n in range(40)]
    made = [state(scenes, random.Random(seed)) for seed in range(60)]
    for each in made:
        pairs, labels = zip(*each.pairs, strict=True)
        assert sorted(labels) == [False, False, True, True]
        assert len(set(pairs)) == 4
        assert all(left != right for left, right in pairs)
    assert state(scenes[:1], random.Random(0)) is None


def test_scenes_write_statements_that_the_builder_reads(tmp_path):
    write_scenes(tmp_path / "scenes", images=40, seed=3)
    builder = build(tmp_path / "scenes", tmp_path, image_id_format="url_stem")
    splits = builder.as_dataset()
    assert set(splits) == {"train", "validation", "test"}
    for name, on_disk in (("train", "train"), ("validation", "val"), ("test", "test")):
        rows = splits[name]
        images = (tmp_path / "scenes" / "flickr30k_entities" / f"{on_disk}.txt").read_text().split()
        assert {image for pair in rows["image_ids"] for image in pair} <= set(images)
        assert Counter(rows["label"])[0] == Counter(rows["label"])[1] > 0
        assert len(set(rows["example_id"])) == len(rows) >= 2 * len(set(rows["text"]))
    vocabulary_file = set((tmp_path / "scenes" / "vocab.txt").read_text().split())
    words = {w for rows in splits.values() for s in rows["text"] for w in s.lower().replace(".", " .").split()}
    assert words <= vocabulary_file


def official_scores(lines, labelled):
    """The official script's figures: accuracy, and the share of sets whose pairs are all right."""
    said = dict(line.split(",") for line in lines)
    right = {key: said[key] == label for key, label in labelled.items()}
    groups = {}
    for key, value in right.items():
        split, number, _, sentence = key.split("-")
        groups.setdefault((split, number, sentence), []).append(value)
    return sum(right.values()) / len(right), sum(map(all, groups.values())) / len(groups)


def test_an_official_file_is_scored_as_the_official_script_does(tmp_path, capsys):
    labelled = {f"dev-{n // 4}-{n % 4}-{n % 2}": str(n % 3 == 0) for n in range(40)}
    records = [{"identifier": key, "sentence": f"s {key}", "label": label} for key, label in labelled.items()]
    for name in ("train", "dev"):
        text = "".join(json.dumps(each) + "\n" for each in records).replace("dev-", f"{name}-")
        (tmp_path / f"{name}.json").write_text(text)
    lines = [f"{key},{label if n % 5 else not label == 'True'}" for n, (key, label) in enumerate(labelled.items())]
    path = tmp_path / "answers.csv"

    def run(written):
        path.write_text("\n".join(written) + "\n")
        words = ["--predictions", path, "--task", "nlvr2", "--data-dir", tmp_path, "--split", "validation", "--json"]
        return evaluate([str(word) for word in (*words, "--output", tmp_path / "out")]), capsys.readouterr()

    status, printed = run([*lines, "test1-0-0-0,true"])
    numbers = json.loads(printed.out)["validation"]
    expected = official_scores(lines, labelled)
    assert status == 0
    assert (numbers["nlvr2_accuracy"], numbers["nlvr2_consistency"]) == pytest.approx(expected)
    again = (tmp_path / "out" / "predictions_validation.csv").read_text().splitlines()
    assert again == lines
    for wrong in (lines[:-1], [*lines, lines[0]], [*lines, "dev-9-9-9"], [*lines, "dev-9-9-9,1"]):
        assert run(wrong)[0] == 2

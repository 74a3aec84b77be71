# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Steps of two versions of the project: turns, arguments, losses, and errors of the other version."""

import json
import re

import pytest
import yaml
from transformers import Trainer

from benchmarks import step_before, step_clock
from tests.helpers.tiny_scenes import tiny_recipe, tiny_scenes


@pytest.fixture
def recipe(tmp_path) -> str:
    tiny_scenes(tmp_path / "scenes")
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(tiny_recipe(tmp_path / "scenes", tmp_path / "run", task="vgp")))
    return str(path)


@pytest.fixture
def other(tmp_path) -> str:
    """The folder of another version."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.py").touch()
    return str(tmp_path / "other")


@pytest.fixture
def trained(monkeypatch) -> list:
    """The folder and the arguments of each training; the other version takes twice as long."""
    calls: list = []

    def train(checkout, arguments):
        calls.append((checkout, arguments))
        return {"seconds": [1.0, 3.0] if checkout == step_before.HERE else [2.0, 6.0], "losses": [9.0, 8.5]}

    monkeypatch.setattr(step_before, "train_in", train)
    return calls


def test_versions_take_turns_with_the_same_arguments(recipe, other, trained, capsys):
    assert step_before.main([other, recipe, "--methods", "none", "direct", "--rounds", "2", "--steps", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = r"{} +0\.50 of before \(0\.50 to 0\.50\); mean loss 8\.5000 before, 8\.5000 now"
    for line, method in zip(lines, ("none", "direct"), strict=True):
        assert re.fullmatch(expected.format(method), line)
    assert [str(checkout) == other for checkout, _ in trained] == [True, False, False, True] * 2
    for number, (_, arguments) in enumerate(trained):
        assert arguments == trained[number // 4 * 4][1]
        assert f"methods=[{('none', 'direct')[number // 4]}]" in arguments and "training.max_steps=2" in arguments


def test_both_versions_read_the_files_of_this_one(recipe, tmp_path):
    options = step_before.parse(["unused", recipe])
    assert f"model.tokenizer={tmp_path / 'scenes' / 'vocab.txt'}" in step_before.make_arguments(options, "none")
    options = step_before.parse(["unused", recipe, "--override", "model.tokenizer=org/name"])
    assert [each for each in step_before.make_arguments(options, "none") if "tokenizer" in each] == [
        "model.tokenizer=org/name"
    ]


def test_the_clock_stops_after_a_training_of_this_version(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "train", Trainer.train)  # undone at the end
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.chdir(step_before.HERE)
    options = step_before.parse(["unused", recipe, "--steps", "2"])
    arguments = [*step_before.make_arguments(options, "direct"), f"output_dir={tmp_path / 'run'}"]
    with pytest.raises(SystemExit) as stopped:
        step_clock.main(str(tmp_path / "steps.json"), arguments)
    assert stopped.value.code == 0
    found = json.loads((tmp_path / "steps.json").read_text())
    assert len(found["seconds"]) == 2 and min(found["seconds"]) > 0
    assert len(found["losses"]) == 1 and found["losses"][0] > 0
    assert not list((tmp_path / "run").glob("**/results.json"))


def test_an_error_of_the_other_version_is_one_line(recipe, other, tmp_path, capsys):
    (tmp_path / "other" / "train.py").write_text("import sys; sys.exit('error: unknown key ' + sys.argv[-2])")
    assert step_before.main([other, recipe, "--rounds", "1"]) == 2
    assert "train.py ended with status 1: error: unknown key training.use_cpu=true" in capsys.readouterr().err


def test_a_folder_without_the_project_is_refused(recipe, tmp_path, capsys):
    assert step_before.main([str(tmp_path), recipe]) == 2
    assert f"{tmp_path}: no train.py; give the folder of a checkout of this project" in capsys.readouterr().err

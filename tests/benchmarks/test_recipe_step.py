# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from benchmarks import recipe_step
from tests.helpers.tiny_scenes import tiny_recipe, tiny_scenes
from tests.helpers.warm_python import run_python


@pytest.fixture
def recipe(tmp_path):
    tiny_scenes(tmp_path / "scenes")
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(tiny_recipe(tmp_path / "scenes", tmp_path / "run", task="vgp")))
    return str(path)


def test_a_method_trains_in_a_process_of_its_own(recipe, monkeypatch):
    def run(command, cwd, env, **_):  # [python, "-P", "-c", code, arguments...]
        return run_python(command[3], command[4:], cwd=cwd, env=env)

    monkeypatch.setattr(recipe_step, "subprocess", SimpleNamespace(run=run))
    options = recipe_step.build_parser().parse_args([recipe, "--steps", "3"])
    done = recipe_step.train_in(recipe_step.HERE, recipe_step.make_arguments(options, "direct"))
    assert len(done["seconds"]) == 3
    assert min(done["seconds"]) > 0
    assert done["losses"][0] > 0
    assert not (Path(recipe).parent / "run").exists()


def test_the_fastest_time_of_each_batch_counts():
    seconds = {"none": [[2.0, 4.0], [1.0, 9.0]], "direct": [[3.0, 7.0], [8.0, 6.0]]}
    runs = {("now", name): [{"seconds": one, "losses": [1.0]} for one in each] for name, each in seconds.items()}
    found = recipe_step.compare(runs)
    assert list(found) == ["direct"]
    assert found["direct"] == {"ratio": 9 / 5, "rounds": [5 / 3, 7 / 5], "other": "none", "losses": [1.0, 1.0]}


@pytest.mark.parametrize("methods", [["none"], ["none", "direct", "none"]])
def test_methods_that_cannot_be_compared_are_refused(recipe, capsys, methods):
    assert recipe_step.main([recipe, "--methods", *methods]) == 2
    assert "give at least two methods, each once" in capsys.readouterr().err


@pytest.fixture
def other(tmp_path):
    """The folder of another version."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.py").touch()
    return str(tmp_path / "other")


@pytest.fixture
def calls(monkeypatch):
    """The calls of `train_in`: versions and arguments; the other version takes twice as long."""
    made = []

    def train(checkout, arguments):
        made.append((checkout, arguments))
        return {"seconds": [1.0, 3.0] if checkout == recipe_step.HERE else [2.0, 6.0], "losses": [9.0, 8.5]}

    monkeypatch.setattr(recipe_step, "train_in", train)
    return made


def test_methods_take_turns(recipe, calls, capsys):
    assert recipe_step.main([recipe, "--methods", "none", "direct", "--rounds", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["direct"]["rounds"] == [1.0, 1.0]
    turns = [next(each for each in arguments if each.startswith("methods=")) for _, arguments in calls]
    assert turns == ["methods=[none]", "methods=[direct]", "methods=[direct]", "methods=[none]"]


def test_versions_take_turns_with_the_same_arguments(recipe, other, calls, capsys):
    quick = ["--methods", "none", "direct", "--rounds", "2", "--steps", "2"]
    assert recipe_step.main([recipe, "--before", other, *quick]) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = r"{} +0\.50 of before \(0\.50 to 0\.50\); mean loss 8\.5000 before, 8\.5000 now"
    for line, method in zip(lines, ("none", "direct"), strict=True):
        assert re.fullmatch(expected.format(method), line)
    assert [str(checkout) == other for checkout, _ in calls] == [True, False] * 2 + [False, True] * 2
    for method in ("none", "direct"):
        own = [arguments for _, arguments in calls if f"methods=[{method}]" in arguments]
        assert len(own) == 4
        assert all(each == own[0] for each in own)
        assert "training.max_steps=2" in own[0]


def test_an_error_of_the_other_version_is_one_line(recipe, other, tmp_path, capsys, monkeypatch):
    def fail(command, cwd, **options):
        assert str(cwd) == other
        assert "training.use_cpu=true" in command
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nerror: unknown key use_cpu\n")

    monkeypatch.setattr(subprocess, "run", fail)
    assert recipe_step.main(["--before", other, recipe, "--rounds", "1"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"error: {other}: train.py ended with status 1: error: unknown key use_cpu"
    assert recipe_step.main(["--before", str(tmp_path), recipe]) == 2
    assert f"{tmp_path}: no train.py" in capsys.readouterr().err

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import json
import re

import numpy as np
import pytest
import torch
import yaml

from benchmarks import recipe_step
from tests.helpers.tiny_scenes import tiny_recipe, tiny_scenes


@pytest.fixture
def recipe(tmp_path):
    tiny_scenes(tmp_path / "scenes")
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(tiny_recipe(tmp_path / "scenes", tmp_path / "run", task="vgp")))
    return str(path)


@pytest.fixture
def apart(monkeypatch):
    """The functions that are called in new processes; here they are called in this one."""
    called = []
    monkeypatch.setattr(
        recipe_step, "run_apart", lambda function, *arguments: called.append(function) or function(*arguments)
    )
    return called


def test_rounds_as_json(recipe, capsys, apart):
    quick = ["--steps", "2", "--rounds", "3", "--methods", "none", "direct"]
    assert recipe_step.main([recipe, *quick, "--json"]) == 0
    assert apart == [recipe_step.time_method] * 6
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(found) == ["direct"] and len(found["direct"]["rounds"]) == 3


def test_the_fastest_time_of_each_batch_counts():
    times = {"none": np.array([[2.0, 4.0], [1.0, 9.0]]), "direct": np.array([[3.0, 7.0], [8.0, 6.0]])}
    assert recipe_step.ratios(times) == {"direct": {"ratio": 9 / 5, "rounds": [5 / 3, 7 / 5]}}


@pytest.mark.parametrize("methods", [["none"], ["none", "direct", "none"]])
def test_methods_that_cannot_be_compared_are_refused(recipe, capsys, methods):
    assert recipe_step.main([recipe, "--methods", *methods]) == 2
    assert "give at least two methods, each once" in capsys.readouterr().err


def test_methods_train_the_same_model_on_the_same_batches(recipe, tmp_path):
    options = recipe_step.parse([recipe, "--steps", "2", "--methods", "none", "direct"])
    trainers = {name: recipe_step.make_trainer_of(name, options, tmp_path) for name in options.methods}
    seen = {name: [] for name in trainers}
    for name, trainer in trainers.items():
        collate = trainer.data_collator
        trainer.data_collator = lambda rows, name=name, collate=collate: (
            seen[name].append([str(row) for row in rows]) or collate(rows)
        )
    first, other = (trainer.model.state_dict().values() for trainer in trainers.values())
    assert all(torch.equal(one, two) for one, two in zip(first, other, strict=True))
    for trainer in trainers.values():
        trainer.train()
    assert seen["none"] and seen["none"] == seen["direct"]
    assert not list(tmp_path.glob("**/*.safetensors"))


# Another version


@pytest.fixture
def other(tmp_path):
    """The folder of another version."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.py").touch()
    return str(tmp_path / "other")


def test_versions_take_turns_with_the_same_arguments(recipe, other, monkeypatch, capsys):
    calls = []

    def train(checkout, arguments):
        calls.append((checkout, arguments))
        return {"seconds": [1.0, 3.0] if checkout == recipe_step.HERE else [2.0, 6.0], "losses": [9.0, 8.5]}

    monkeypatch.setattr(recipe_step, "train_in", train)
    quick = ["--methods", "none", "direct", "--rounds", "2", "--steps", "2"]
    assert recipe_step.main([recipe, "--before", other, *quick]) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = r"{} +0\.50 of before \(0\.50 to 0\.50\); mean loss 8\.5000 before, 8\.5000 now"
    for line, method in zip(lines, ("none", "direct"), strict=True):
        assert re.fullmatch(expected.format(method), line)
    assert [str(checkout) == other for checkout, _ in calls] == [True, False, False, True] * 2
    for number, (_, arguments) in enumerate(calls):
        assert arguments == calls[number // 4 * 4][1]
        assert f"methods=[{('none', 'direct')[number // 4]}]" in arguments and "training.max_steps=2" in arguments


def test_an_error_of_the_other_version_is_one_line(recipe, other, tmp_path, capsys):
    (tmp_path / "other" / "train.py").write_text("import sys; sys.exit('error: unknown key ' + sys.argv[-2])")
    assert recipe_step.main(["--before", other, recipe, "--rounds", "1"]) == 2
    assert "train.py ended with status 1: error: unknown key training.use_cpu=true" in capsys.readouterr().err
    assert recipe_step.main(["--before", str(tmp_path), recipe]) == 2
    assert f"{tmp_path}: no train.py" in capsys.readouterr().err

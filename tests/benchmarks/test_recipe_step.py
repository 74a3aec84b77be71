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


def test_one_line_for_each_method_but_the_first(recipe, capsys, apart):
    quick = ["--steps", "2", "--rounds", "1", "--methods", "none", "direct"]
    assert recipe_step.main([recipe, *quick]) == 0
    assert re.fullmatch(r"direct +\d\.\d\d of none \(\d\.\d\d to \d\.\d\d\)\n", capsys.readouterr().out)
    assert apart == [recipe_step.time_method] * 2


def test_rounds_as_json(recipe, capsys, apart):
    quick = ["--steps", "2", "--rounds", "3", "--methods", "none", "direct"]
    assert recipe_step.main([recipe, *quick, "--json"]) == 0
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


def test_an_unknown_method_is_one_line(recipe, capsys, apart):
    assert recipe_step.main([recipe, "--methods", "none", "drect"]) == 2
    assert (
        capsys.readouterr().err.splitlines()[-1].startswith("error: attention supervision method 'drect' is unknown")
    )

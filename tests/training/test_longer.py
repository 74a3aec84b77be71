# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A run is trained longer from its last checkpoint; other differences, and unknown figures, are named at the start."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.tiny_scenes import refusal, run_train, tiny_recipe
from tests.helpers.tiny_vlm_recipes import vlm_recipe

KEPT = ["training.save_strategy=steps", "training.save_steps=1", "training.lr_scheduler_type=constant"]
EVALUATED = ["training.eval_strategy=steps", "training.eval_steps=1", *KEPT[:2]]


def history(folder):
    return [
        {k: v for k, v in entry.items() if "loss" in k} for entry in json.loads((folder / "history.json").read_text())
    ]


@pytest.mark.parametrize(
    ("recipe_of", "length"), [(tiny_recipe, ("max_steps", 2, 4)), (vlm_recipe, ("num_train_epochs", 1, 2))]
)
def test_a_finished_run_is_trained_longer(scenes, tmp_path, monkeypatch, capsys, recipe_of, length):
    """With a constant learning rate it is the longer run; methods, baseline and root figures are made anew."""
    key, short, long = length
    runs = {name: recipe_of(scenes, tmp_path / name, methods=["none", "direct"]) for name in ("run", "straight")}
    for recipe in runs.values():
        del recipe["training"]["max_steps"]
    for steps in (short, long):
        assert run_train(monkeypatch, tmp_path, runs["run"], *KEPT, f"training.{key}={steps}", "resume=true") == 0
    out = capsys.readouterr().out
    assert f"training.{key} is {short} there, {long} here" in out
    assert "learning rate" in out
    assert run_train(monkeypatch, tmp_path, runs["straight"], *KEPT, f"training.{key}={long}") == 0
    for method in ("none", "direct"):
        found, expected = (load_file(tmp_path / name / method / "model.safetensors") for name in ("run", "straight"))
        assert all(torch.equal(found[name], weight) for name, weight in expected.items())
        assert history(tmp_path / "run" / method)[-2] == history(tmp_path / "straight" / method)[-2]
    results = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("run", "straight")]
    figures = [each["methods"]["direct"]["figures"]["test"] for each in results]
    assert figures[0] == figures[1]
    assert results[0]["recipe"]["training"][key] == long
    assert run_train(monkeypatch, tmp_path, runs["run"], *KEPT, f"training.{key}={long}", "resume=true") == 0
    assert capsys.readouterr().out.count("finished before") == 2


def test_what_differs_is_named(scenes, tmp_path, monkeypatch, capsys):
    recipe = tiny_recipe(scenes, tmp_path / "run", methods=["none"])
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    before = sorted(tmp_path.rglob("run/**/*"))
    for overrides, expected in (
        (["training.max_steps=2"], "training.max_steps (3, now 2)"),
        (["training.max_steps=6", "training.learning_rate=0.5"], "training.learning_rate (None, now 0.5)"),
        (["model.config.hidden_size=32", "task=vqa"], "model.config.hidden_size (16, now 32)"),
        (["data.limit.train=" + "1" * 9], "data.limit.train (16, now 1"),
        (["training.max_steps=6"], "training.max_steps is 3 there, 6 here"),  # no checkpoint was kept
    ):
        assert run_train(monkeypatch, tmp_path, recipe, "resume=true", *overrides) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
        assert expected in line
        assert str(tmp_path / "run") in line
        assert sorted(tmp_path.rglob("run/**/*")) == before


@pytest.mark.parametrize(
    "given",
    [
        ["training.load_best_model_at_end=true"],
        ["training.metric_for_best_model=vgp_accurcy"],
        ["training.lr_scheduler_type=reduce_lr_on_plateau"],
    ],
)
@pytest.mark.parametrize("recipe_of", [tiny_recipe, vlm_recipe])
def test_a_figure_that_no_evaluation_has_is_refused_before_training(
    scenes, tmp_path, monkeypatch, capsys, given, recipe_of
):
    recipe = recipe_of(scenes, tmp_path / "run")
    line = refusal(capsys, monkeypatch, tmp_path, recipe, *EVALUATED, *given)
    name = "answer_perplexity" if recipe_of is vlm_recipe else "vgp_accuracy"
    assert "training.metric_for_best_model" in line
    assert name in line


def test_the_best_model_of_a_recipe_is_kept(scenes, tmp_path, monkeypatch):
    best = ["training.load_best_model_at_end=true", "training.metric_for_best_model=answer_perplexity"]
    best += ["training.greater_is_better=true", "training.learning_rate=0.01"]
    recipe = vlm_recipe(scenes, tmp_path / "run", methods=["none"])
    assert run_train(monkeypatch, tmp_path, recipe, *EVALUATED, *best) == 0
    state = json.loads((tmp_path / "run" / "none" / "checkpoint-3" / "trainer_state.json").read_text())
    kept = load_file(tmp_path / "run" / "none" / f"checkpoint-{state['best_global_step']}" / "model.safetensors")
    found = load_file(tmp_path / "run" / "none" / "model.safetensors")
    assert state["best_global_step"] < 3
    assert all(torch.equal(kept[name], found[name]) for name in kept)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A run is trained longer from its last checkpoint; other differences, and unknown figures, are named at the start."""

import pytest

from tests.helpers.tiny_scenes import run_train, tiny_recipe
from tests.helpers.tiny_vlm_recipes import vlm_recipe
from tests.training.runs import assert_same_weights, assert_words, read_json, results, saved_weights

KEPT = ["training.save_strategy=steps", "training.save_steps=1", "training.lr_scheduler_type=constant"]
EVALUATED = ["training.eval_strategy=steps", "training.eval_steps=1", *KEPT[:2]]


def steps(folder):
    """The loss of each step that a training has logged."""
    return [entry["loss"] for entry in read_json(folder / "history.json") if "loss" in entry]


@pytest.mark.parametrize(
    "recipe_of, key, short, long", [(tiny_recipe, "max_steps", 2, 4), (vlm_recipe, "num_train_epochs", 1, 2)]
)
def test_a_finished_run_is_trained_longer(scenes, tmp_path, capsys, recipe_of, key, short, long, run_recipe):
    """With a constant learning rate it is the longer run; methods, baseline and root figures are made anew."""
    recipe = recipe_of(scenes, tmp_path / "run", methods=["none", "direct"])
    del recipe["training"]["max_steps"]
    run_recipe(recipe, *KEPT, f"training.{key}={short}")
    run_recipe(recipe, *KEPT, f"training.{key}={long}", "resume=true")
    assert_words(capsys.readouterr().out, f"training.{key} is {short} there, {long} here ... learning rate")
    run_recipe(recipe, *KEPT, f"training.{key}={long}", f"output_dir={tmp_path}/straight")
    for method in ("none", "direct"):
        found = tmp_path / "run" / method
        expected = tmp_path / "straight" / method
        assert_same_weights(saved_weights(found), saved_weights(expected))
        assert steps(found)[-1] == steps(expected)[-1]
    found = results(tmp_path / "run")
    figures = results(tmp_path / "straight")["methods"]["direct"]["figures"]
    assert found["methods"]["direct"]["figures"]["test"] == figures["test"]
    assert found["recipe"]["training"][key] == long
    run_recipe(recipe, *KEPT, f"training.{key}={long}", "resume=true")
    assert capsys.readouterr().out.count("finished before") == 2


def test_what_differs_is_named(scenes, tmp_path, monkeypatch, capsys, run_recipe):
    recipe = tiny_recipe(scenes, tmp_path / "run", methods=["none"])
    run_recipe(recipe)
    before = sorted(tmp_path.rglob("run/**/*"))
    for overrides, expected in (
        ("training.max_steps=2", "training.max_steps (3, now 2)"),
        ("training.max_steps=6 training.learning_rate=0.5", "training.learning_rate (None, now 0.5)"),
        ("model.config.hidden_size=32 task=vqa", "model.config.hidden_size (16, now 32)"),
        ("data.limit.train=111111111", "data.limit.train (16, now 1"),
        ("training.max_steps=6", "training.max_steps is 3 there, 6 here"),  # no checkpoint was kept
    ):
        assert run_train(monkeypatch, tmp_path, recipe, "resume=true", *overrides.split()) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
        assert expected in line
        assert f"{tmp_path}/run" in line
        assert sorted(tmp_path.rglob("run/**/*")) == before


@pytest.mark.parametrize(
    "override",
    [
        "training.load_best_model_at_end=true",
        "training.metric_for_best_model=vgp_accurcy",
        "training.lr_scheduler_type=reduce_lr_on_plateau",
    ],
)
@pytest.mark.parametrize("recipe_of, figure", [(tiny_recipe, "vgp_accuracy"), (vlm_recipe, "answer_perplexity")])
def test_a_figure_that_no_evaluation_has_is_refused(scenes, tmp_path, override, recipe_of, figure, refused):
    line = refused(recipe_of(scenes, tmp_path / "run"), *EVALUATED, override)
    assert_words(line, f"training.metric_for_best_model ... {figure}")


def test_the_best_model_of_a_recipe_is_kept(scenes, tmp_path, run_recipe):
    best = ["training.load_best_model_at_end=true", "training.metric_for_best_model=answer_perplexity"]
    best += ["training.greater_is_better=true", "training.learning_rate=0.01", "methods=[none]"]
    run_recipe(vlm_recipe(scenes, tmp_path / "run"), *EVALUATED, *best)
    folder = tmp_path / "run/none"
    step = read_json(folder / "checkpoint-3/trainer_state.json")["best_global_step"]
    assert step < 3
    assert_same_weights(saved_weights(folder), saved_weights(folder / f"checkpoint-{step}"))

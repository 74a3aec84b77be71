# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Where a recipe's runs go on the Hub, what failures are named, and that every process learns of them."""

import json

import pytest
import yaml
from accelerate import debug_launcher

from grounded_attention.training.experiments.output import identity
from grounded_attention.training.loop.checkpoint import snapshot
from grounded_attention.training.publish.hub import (
    HubError,
    model_files,
    on_main_process,
    plan_repos,
)
from grounded_attention.training.recipes.recipe import Recipe, RecipeError, load_recipe

PUSH = {"push_to_hub": True}


def places(recipe):
    return {name: repo.id for name, repo in plan_repos(recipe).items()}


def test_names_of_repositories():
    given = {**PUSH, "hub_model_id": "org/scenes"}
    assert places(Recipe(output_dir="runs/x")) == {}
    assert places(Recipe(output_dir="runs/x", training=given)) == {"none": "org/scenes"}
    assert places(Recipe(output_dir="runs/my run", training=PUSH)) == {"none": "my-run"}
    several = Recipe(output_dir="runs/x", methods=["none", "semi_direct"], training=given, text_only_baseline=True)
    assert places(several) == {"none": "org/scenes-none", "semi_direct": "org/scenes-semi-direct"}
    begun = Recipe(output_dir="runs/x", training=given, start=Recipe(training=PUSH))
    assert places(begun) == {"start": "x-start", "none": "org/scenes"}
    assert places(Recipe(output_dir="runs/x", start=Recipe(training=PUSH))) == {"start": "x-start"}


@pytest.mark.parametrize(
    "training, words",
    [
        ({"hub_model_id": "a/b/c"}, "expected NAMESPACE/NAME"),
        ({"hub_model_id": 3}, "training.hub_model_id must be of type str, found int"),
        ({"hub_strategy": "never"}, "training.hub_strategy=never"),
        ({"hub_token": 12345}, "training.hub_token must be of type str, found int"),
    ],
)
def test_wrong_keys_are_named(training, words):
    with pytest.raises(RecipeError) as raised:
        plan_repos(Recipe(output_dir="runs/x", training={**PUSH, **training}))
    assert words in str(raised.value)
    assert "12345" not in str(raised.value)


def test_two_models_need_two_repositories():
    training = {**PUSH, "hub_model_id": "org/one"}
    with pytest.raises(RecipeError, match="must differ"):
        plan_repos(Recipe(output_dir="runs/x", training=training, start=Recipe(training=training)))


def test_hub_keys_do_not_change_the_identity_of_a_recipe():
    plain = Recipe(training={"max_steps": 3})
    start = Recipe(training={"max_steps": 1, **PUSH, "hub_token": "hf_secret"})
    pushed = Recipe(training={"max_steps": 3, **PUSH, "hub_token": "hf_secret"}, start=start)
    assert identity(pushed)["training"] == identity(plain)["training"] == {"max_steps": 3}
    assert "hf_secret" not in json.dumps(identity(pushed))


def raise_in_each_process():
    def fail():
        raise HubError("no room")

    assert on_main_process(lambda: {"a": 1}) == {"a": 1}
    with pytest.raises(HubError, match="no room"):
        on_main_process(fail)


def test_every_process_learns_what_the_main_one_met():
    raise_in_each_process()
    debug_launcher(raise_in_each_process, num_processes=2)


def test_a_snapshot_outlives_the_checkpoint_without_a_copy(tmp_path):
    checkpoint = tmp_path / "checkpoint-1"
    (checkpoint / "optimizer_0").mkdir(parents=True)
    (checkpoint / "optimizer_0/part").write_text("state")
    copy = snapshot(checkpoint, tmp_path / ".push/checkpoint-1")
    assert (copy / "optimizer_0/part").stat().st_nlink == 2
    (checkpoint / "optimizer_0/part").unlink()
    assert (copy / "optimizer_0/part").read_text() == "state"


def test_a_checkpoint_without_whole_weights_is_not_pushed(tmp_path):
    for name in ("config.json", "optimizer.pt", "training_args.bin", "trainer_state.json", "modeling_x.py"):
        (tmp_path / name).write_text("")
    with pytest.raises(HubError, match="has no complete model"):
        model_files(tmp_path)
    (tmp_path / "model.safetensors").write_text("")
    assert set(model_files(tmp_path)) == {"config.json", "modeling_x.py", "model.safetensors"}


@pytest.mark.parametrize("key", ["save_strategy", "eval_strategy", "logging_strategy"])
def test_no_is_a_word_where_a_word_is_expected(tmp_path, key):
    """YAML 1.1 reads it as false."""
    path = tmp_path / "recipe.yaml"
    path.write_text(
        yaml.safe_dump({"output_dir": "x", "start": {"training": {key: False}}, "training": {"bf16": False}})
    )
    recipe = load_recipe(path, [f"training.{key}=no"])
    assert recipe.training == {"bf16": False, key: "no"}
    assert recipe.start.training == {key: "no"}

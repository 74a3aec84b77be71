# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The loss against forgetting: its value by plain loops, exact counts, whole runs."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.checks import check_preserve
from grounded_attention.training.recipes.recipe import Preserve, Recipe, RecipeError
from tests.helpers.tiny_scenes import tiny_recipe, tiny_scenes
from tests.helpers.tiny_trainer import assert_same, logged, weights
from tests.helpers.tiny_vgp import tiny_batch
from tests.helpers.two_processes import run_two
from tests.training.preserve_steps import (
    WEIGHT,
    load_start,
    preservation_of,
    preserving_trainer,
    run_case,
    save_start,
)
from tests.training.runs import assert_same_weights, changed_names, kill, read_json, saved_weights


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    directory = tmp_path_factory.mktemp("start")
    save_start(directory)
    return directory


def losses_of(preservation, model, batch):
    inputs = {name: batch[name] for name in TASKS["vgp"].model_inputs if name in batch}
    outputs = model(**inputs, **preservation.forward_kwargs)
    return preservation.losses(outputs, batch), preservation.counts(batch)


def test_a_model_that_is_the_start_loses_nothing(start):
    model = load_start(start)[0].eval()
    with torch.no_grad():  # new heads are free
        for parameter in model.vgp_head.parameters():
            parameter += 1
    losses, counts = losses_of(preservation_of(start), model, tiny_batch(5))
    assert losses.keys() == counts.keys()
    sum(total for total, _ in losses.values()).backward()
    assert all(total.abs() < 1e-6 for total, _ in losses.values())
    assert all(p.grad is None or p.grad.abs().max() < 1e-5 for p in model.parameters())


def test_state_distillation_by_loops(start):
    model = load_start(start)[0].eval()
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    origin = load_start(start)[0].eval()
    batch = tiny_batch(5)
    losses, counts = losses_of(preservation_of(start), model, batch)
    total = count = 0
    for i in range(5):  # each example alone, unpadded
        tokens = int(batch["attention_mask"][i].sum())
        regions = int(batch["region_attention_mask"][i].sum())
        alone = {}
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            alone[name] = batch[name][i : i + 1, :tokens]
        for name in ("region_features", "region_boxes", "region_attention_mask"):
            alone[name] = batch[name][i : i + 1, :regions]
        states = model.vl_bert(**alone).last_hidden_state[0, :-1]
        expected = origin.vl_bert(**alone).last_hidden_state[0, :-1]
        total += (states - expected).pow(2).mean(-1).sum().item()
        count += len(states)
    assert losses["distillation"][0].item() == pytest.approx(total, rel=1e-4)
    assert total > 0
    assert counts["distillation"] == count


def test_the_teacher_learns_nothing_and_has_no_dropout(start, tmp_path):
    trainer = preserving_trainer(tmp_path, start, max_steps=2, per_device_train_batch_size=4)
    before = weights(trainer.preservation.start)
    trainer.train()
    assert_same(before, weights(trainer.preservation.start), 0)
    assert not trainer.preservation.start.training
    assert changed_names(weights(trainer.model), weights(trainer.preservation.start))
    assert not any("start" in name for name in trainer.model.state_dict())


def test_the_components_are_logged_and_add_up(start, tmp_path):
    trainer = preserving_trainer(tmp_path, start, max_steps=3, per_device_train_batch_size=4)
    trainer.train()
    for step, entry in enumerate(logged(trainer)):
        own = entry.pop("loss_distillation")
        plain = [value for key, value in entry.items() if key.startswith("loss_")]
        assert sum(plain) + WEIGHT * own == pytest.approx(entry["loss"], abs=1e-4)
        assert (own > 0) == (step > 0)


def test_resume_continues_exactly(start, tmp_path):
    arguments = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 5}
    arguments |= {"save_strategy": "steps", "save_steps": 2}
    straight = preserving_trainer(tmp_path / "a", start, **arguments)
    straight.train()
    resumed = preserving_trainer(tmp_path / "b", start, **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a/checkpoint-2"))
    assert_same(weights(straight.model), weights(resumed.model), 0)
    assert logged(straight)[2:] == logged(resumed)[2:]


# Accumulation and processes

CASES = ["4:1", "2:2"]


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory, start):
    output = tmp_path_factory.mktemp("two")
    run_two("tests.training.preserve_steps", output, start, *CASES)
    return output


def assert_equal_runs(one, two, first, second):
    for expected, found in zip(read_json(one / f"{first}.json"), read_json(two / f"{second}.json"), strict=True):
        losses = {key for key in expected if key.startswith("loss")}
        assert losses == {key for key in found if key.startswith("loss")}
        for key in losses:
            assert found[key] == pytest.approx(expected[key], abs=2e-5, rel=1e-4), key
    assert_same(load_file(one / f"{first}.safetensors"), load_file(two / f"{second}.safetensors"), 1e-5)


def test_accumulation_trains_as_one_batch(start, tmp_path):
    for case in ("8:1", "2:4"):
        run_case(case, tmp_path, start)
    assert_equal_runs(tmp_path, tmp_path, "8:1", "2:4")


@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_as_one(start, two_processes, tmp_path, case):
    run_case("8:1", tmp_path, start)
    assert_equal_runs(tmp_path, two_processes, "8:1", case)


# Recipes


def test_a_bad_section_is_refused():
    with pytest.raises(RecipeError, match="preserve needs a start model"):
        check_preserve(Recipe(preserve=Preserve(distillation=1.0)))
    sharded = Recipe(start=Recipe(task="pretraining"), training={"fsdp": "full_shard"})
    with pytest.raises(RecipeError, match=r"remove training\.fsdp"):
        check_preserve(replace(sharded, preserve=Preserve(distillation=1.0)))


def test_a_run_is_kept_near_its_start(tmp_path, run_recipe):
    scenes = tiny_scenes(tmp_path / "scenes")
    recipe = tiny_recipe(scenes, tmp_path / "run", preserve={"distillation": 1.0}, resume=True)
    recipe["training"] |= {"save_strategy": "steps", "save_steps": 2}
    options = {"relationship": False, "background": False}
    recipe["start"] = {"task": "pretraining", "options": options, "training": recipe["training"]}
    run_recipe(recipe, "text_only_baseline=true")
    run = tmp_path / "run/direct"
    history = [entry for entry in read_json(run / "history.json") if "loss" in entry]
    assert all("loss_distillation" in entry for entry in history)
    assert history[-1]["loss_distillation"] > 0
    blind = read_json(tmp_path / "run/text_only/history.json")
    assert not any("loss_distillation" in entry for entry in blind)
    expected = saved_weights(run)
    kill(run)
    run_recipe(recipe, "text_only_baseline=true")
    assert_same_weights(saved_weights(run), expected)

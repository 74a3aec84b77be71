# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The loss against forgetting: its value by plain loops, exact counts, whole runs."""

from dataclasses import replace

import pytest
import torch

from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.checks import check_preserve
from grounded_attention.training.recipes.recipe import Preserve, Recipe, RecipeError
from tests.helpers.tiny_scenes import tiny_recipe, tiny_scenes
from tests.helpers.tiny_trainer import assert_same, logged, weights
from tests.helpers.tiny_vgp import tiny_batch
from tests.training.preserve_steps import (
    WEIGHT,
    load_start,
    preservation_of,
    preserving_trainer,
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


def test_accumulation_trains_as_one_batch(start, tmp_path):
    trainers = []
    for batch, accumulation in ((8, 1), (2, 4)):
        sizes = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation, "max_steps": 2}
        trainers.append(preserving_trainer(tmp_path, start, **sizes))
        trainers[-1].train()
    one, parts = trainers
    for expected, found in zip(logged(one), logged(parts), strict=True):
        losses = {key: value for key, value in expected.items() if key.startswith("loss")}
        assert "loss_distillation" in losses
        assert {key: found[key] for key in losses} == pytest.approx(losses, abs=2e-5, rel=1e-4)
    assert_same(weights(one.model), weights(parts.model), 1e-5)


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

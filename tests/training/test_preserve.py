# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Losses against forgetting: their values by plain loops, exact counts, the Fisher information, whole runs."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from grounded_attention.modeling import VLBertForPreTraining
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.start_model import check_preserve, pretraining_recipe
from grounded_attention.training.loop.data import Collator
from grounded_attention.training.loop.preserve import estimate_fisher
from grounded_attention.training.recipes.recipe import Model, Preserve, Recipe, RecipeError
from tests.helpers.tiny_scenes import run_train, tiny_recipe, tiny_scenes
from tests.helpers.tiny_trainer import assert_same, logged, weights
from tests.helpers.tiny_vgp import tiny_model, tiny_processor, tiny_rows, tiny_table
from tests.helpers.two_processes import run_two
from tests.training.preserve_steps import (
    SECTIONS,
    load_start,
    preservation_of,
    preserving_trainer,
    run_case,
    save_start,
)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    directory = tmp_path_factory.mktemp("start")
    save_start(directory)
    return directory


def vgp_batch(rows=5):
    table = tiny_table(8)
    return Collator(TASKS["vgp"], tiny_processor(), table)(list(tiny_rows(table))[:rows])


def run_model(model, batch, **kwargs):
    return model(**{name: batch[name] for name in TASKS["vgp"].model_inputs if name in batch}, **kwargs)


def losses_of(preservation, model, batch):
    outputs = run_model(model, batch, **preservation.forward_kwargs())
    return preservation.losses(outputs, batch), preservation.counts(batch)


def disturbed(model, size=0.05):
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn_like(parameter)
    return model.eval()


@pytest.mark.parametrize("name", SECTIONS)
def test_a_model_that_is_the_start_loses_nothing(start, name):
    model = load_start(start)[0].eval()
    with torch.no_grad():  # new heads are free
        for parameter in model.vgp_head.parameters():
            parameter += 1
    losses, counts = losses_of(preservation_of(SECTIONS[name], model, start), model, vgp_batch())
    assert losses.keys() == counts.keys()
    sum(total for total, _ in losses.values()).backward()
    assert all(total.abs() < 1e-6 for total, _ in losses.values())
    assert all(p.grad is None or p.grad.abs().max() < 1e-5 for p in model.parameters())


def test_squared_distances_by_loops(start):
    model = disturbed(load_start(start)[0])
    preservation = preservation_of(SECTIONS["states"], model, start)
    origin = load_start(start)[0].state_dict()
    losses, counts = losses_of(preservation, model, vgp_batch())
    plain = weighted = 0.0
    gradients = {}
    for name, parameter in model.named_parameters():
        if name.startswith("vl_bert.") and "pooler" not in name:  # the start has no pooler, so this one is new
            difference = parameter.detach() - origin[name]
            plain += 0.5 * (difference.double() ** 2).sum().item()
            weighted += 0.5 * (preservation.fisher[name] * difference.double() ** 2).sum().item()
            gradients[name] = difference * preservation.fisher[name]
    assert losses["l2"][0].item() == pytest.approx(plain, rel=1e-5)
    assert losses["ewc"][0].item() == pytest.approx(weighted, rel=1e-5)
    assert (losses["l2"][1], losses["ewc"][1]) == (0.03, 0.5)
    assert counts["l2"] == counts["ewc"] == 1
    (3 * losses["ewc"][0]).backward()
    for name, parameter in model.named_parameters():
        if name in gradients:
            torch.testing.assert_close(parameter.grad, 3 * gradients[name])
        else:
            assert parameter.grad is None, name  # a new head


def test_state_distillation_by_loops(start):
    model, origin, batch = disturbed(load_start(start)[0]), load_start(start)[0].eval(), vgp_batch()
    losses, counts = losses_of(preservation_of(SECTIONS["states"], model, start), model, batch)
    total = count = 0
    for i in range(5):  # each example alone, unpadded
        tokens, regions = int(batch["attention_mask"][i].sum()), int(batch["region_attention_mask"][i].sum())
        alone = {n: batch[n][i : i + 1, :tokens] for n in ("input_ids", "attention_mask", "token_type_ids")}
        names = ("region_features", "region_boxes", "region_attention_mask")
        alone |= {n: batch[n][i : i + 1, :regions] for n in names}
        ours, theirs = (m.vl_bert(**alone).last_hidden_state[0, :-1] for m in (model, origin))
        for a, b in zip(ours, theirs, strict=True):
            total, count = total + ((a - b) ** 2).mean().item(), count + 1
    assert losses["distillation"][0].item() == pytest.approx(total, rel=1e-4) and total > 0
    assert counts["distillation"] == count


def test_the_teacher_learns_nothing_and_has_no_dropout(start, tmp_path):
    trainer = preserving_trainer(tmp_path, start, SECTIONS["states"], max_steps=2, per_device_train_batch_size=4)
    before = weights(trainer.preservation.start)
    trainer.train()
    assert_same(before, weights(trainer.preservation.start), 0)
    assert not trainer.preservation.start.training
    assert any(not torch.equal(v, before[n]) for n, v in weights(trainer.model).items())
    assert not any("start" in name for name in trainer.model.state_dict())


@pytest.mark.parametrize("name", SECTIONS)
def test_the_components_are_logged_and_add_up(start, tmp_path, name):
    section = SECTIONS[name]
    trainer = preserving_trainer(tmp_path, start, section, max_steps=3, per_device_train_batch_size=4)
    trainer.train()
    kept = ["distillation", "l2", "ewc"]
    for step, entry in enumerate(logged(trainer)):
        plain = [v for k, v in entry.items() if k.startswith("loss_") and k.removeprefix("loss_") not in kept]
        own = [getattr(section, part.partition("_")[0]) * entry[f"loss_{part}"] for part in kept]
        assert sum(plain) + sum(own) == pytest.approx(entry["loss"], abs=1e-4)
        assert all(value > 0 for value in own) == (step > 0)


def test_resume_continues_exactly(start, tmp_path):
    arguments = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 5}
    arguments |= {"save_strategy": "steps", "save_steps": 2}
    straight = preserving_trainer(tmp_path / "a", start, SECTIONS["states"], **arguments)
    straight.train()
    resumed = preserving_trainer(tmp_path / "b", start, SECTIONS["states"], **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    assert_same(weights(straight.model), weights(resumed.model), 0)
    assert logged(straight)[2:] == logged(resumed)[2:]


# Accumulation and processes

CASES = [f"{name}:{split}" for name in SECTIONS for split in ("4:1", "2:2")]


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory, start):
    output = tmp_path_factory.mktemp("two")
    run_two("tests.training.preserve_steps", output, start, *CASES)
    return output


def assert_equal_runs(one, two, name, first, second):
    logs = [json.loads((d / f"{case}.json").read_text()) for d, case in ((one, first), (two, second))]
    for expected, found in zip(*logs, strict=True):
        losses = {key for key in expected if key.startswith("loss")}
        assert losses == {key for key in found if key.startswith("loss")}
        for key in losses:
            assert found[key] == pytest.approx(expected[key], abs=2e-5, rel=1e-4), (name, key)
    assert_same(load_file(one / f"{first}.safetensors"), load_file(two / f"{second}.safetensors"), 1e-5)


@pytest.mark.parametrize("name", SECTIONS)
def test_accumulation_trains_as_one_batch(start, tmp_path, name):
    for case in (f"{name}:8:1", f"{name}:2:4"):
        run_case(case, tmp_path, start)
    assert_equal_runs(tmp_path, tmp_path, name, f"{name}:8:1", f"{name}:2:4")


@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_as_one(start, two_processes, tmp_path, case):
    name = case.partition(":")[0]
    run_case(f"{name}:8:1", tmp_path, start)
    assert_equal_runs(tmp_path, two_processes, name, f"{name}:8:1", case)


# Fisher information


def test_fisher_is_the_mean_of_squared_gradients(start):
    table, task = tiny_table(8), TASKS["pretraining"]
    rows = [{"image_id": str(i), "caption_id": f"c{i}", "text": "a b c d e f g h"} for i in range(6)]
    options = {"relationship": False, "background": False, "word_probability": 0.5, "region_probability": 0.5}
    collator = Collator(task, tiny_processor(), table, split=rows, options=options)
    batches = [collator([row]) for row in rows]
    model = load_start(start, VLBertForPreTraining)[0]
    names = {name for name, _ in model.named_parameters() if name.startswith("vl_bert.")}
    found = estimate_fisher(model, task, batches, names)
    assert found.keys() == names
    squares = {name: torch.zeros_like(value) for name, value in found.items()}
    plain = load_start(start, VLBertForPreTraining)[0].eval()
    for batch in batches:
        plain.zero_grad()
        given = {n: batch[n] for n in (*task.model_inputs, "labels", "region_labels") if n in batch}
        plain(**given).loss.backward()  # the model's own loss: the sum of means
        for name, parameter in plain.named_parameters():
            if name in squares and parameter.grad is not None:
                squares[name] += parameter.grad**2 / len(batches)
    for name, value in found.items():
        assert value.dtype == torch.float32 and (value >= 0).all()
        torch.testing.assert_close(value, squares[name], rtol=1e-3, atol=1e-9)
    assert sum(value.sum() for value in found.values()) > 0


# Recipes


def recipe_of(**preserve):
    return Recipe(preserve=Preserve(**preserve), start=Recipe(task="pretraining"))


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (recipe_of(ewc=1.0, options={"word": False}), "did you mean 'preserve.options.words'"),
        (Recipe(preserve=Preserve(l2=1.0)), "preserve needs a start model"),
        (replace(recipe_of(ewc=1.0), start=Recipe(task="vgp")), "preserve.ewc needs a start model with pre-training"),
        (replace(recipe_of(l2=1.0), training={"fsdp": "full_shard"}), "remove training.fsdp"),
    ],
)
def test_a_bad_section_is_refused(recipe, words):
    with pytest.raises(RecipeError) as caught:
        check_preserve(recipe)
    assert words in str(caught.value)


def test_a_source_must_have_the_heads(start, tmp_path):
    section = Preserve(ewc=1.0)
    check_preserve(Recipe(preserve=section, model=Model(source=str(start))))
    tiny_model().save_pretrained(tmp_path)
    with pytest.raises(RecipeError, match="checkpoint of VLBertForPreTraining"):
        check_preserve(Recipe(preserve=section, model=Model(source=str(tmp_path))))
    check_preserve(Recipe(preserve=Preserve(distillation=1.0, l2=1.0), model=Model(source=str(tmp_path))))


def test_whose_pre_training_counts():
    start = Recipe(task="pretraining", options={"words": True, "regions": False})
    section = Preserve(ewc=1.0, builder="coco_captions", options={"words": False})
    found = pretraining_recipe(Recipe(preserve=section, start=start))
    assert (found.task, found.data.builder) == ("pretraining", "coco_captions")
    assert found.options == {"words": False, "regions": False}
    recipe = Recipe(preserve=Preserve(ewc=1.0), model=Model(source="x"))
    recipe.data.data_dir, recipe.data.options = "place", {"negatives": "random"}
    alone = pretraining_recipe(recipe)
    assert alone.task == "pretraining" and (alone.data.data_dir, alone.data.options) == ("place", {})


def test_a_run_is_kept_near_its_start(tmp_path, monkeypatch):
    scenes = tiny_scenes(tmp_path / "scenes")
    training = tiny_recipe(scenes, tmp_path)["training"] | {"save_strategy": "steps", "save_steps": 2}
    options = {"relationship": False, "background": False}
    begin = {"task": "pretraining", "options": options, "training": {**training, "max_steps": 2}}
    preserve = {"distillation": 1.0, "l2": 0.1, "ewc": 1.0}
    sections = {"start": begin, "preserve": preserve, "training": training, "resume": True, "text_only_baseline": True}
    recipe = tiny_recipe(scenes, tmp_path / "run", **sections)
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    run = tmp_path / "run" / "direct"
    history = [entry for entry in json.loads((run / "history.json").read_text()) if "loss" in entry]
    names = {"loss_distillation", "loss_l2", "loss_ewc"}
    assert all(names <= entry.keys() for entry in history) and history[-1]["loss_l2"] > 0
    blind = json.loads((tmp_path / "run" / "text_only" / "history.json").read_text())
    assert not names & {key for entry in blind for key in entry}
    fisher = load_file(tmp_path / "run" / "fisher.safetensors")
    assert all(name.startswith("vl_bert.") for name in fisher) and sum(f.sum() for f in fisher.values()) > 0
    expected = load_file(run / "model.safetensors")
    for path in [path for path in run.iterdir() if path.is_file()]:  # killed before the model was saved
        path.unlink()
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    again = load_file(run / "model.safetensors")
    assert all(torch.equal(again[name], value) for name, value in expected.items())


def test_visualbert_is_kept_near_the_start_of_its_own_pretraining(tmp_path, monkeypatch):
    """It predicts words alone; its Fisher information is that of words and match."""
    scenes = tiny_scenes(tmp_path / "scenes")
    recipe = tiny_recipe(scenes, tmp_path / "run")
    del recipe["model"]["config"]["region_classes"]
    recipe["model"]["family"] = "visualbert"
    data = {"builder": "coco_captions", "options": {"config_name": "karpathy"}}
    begin = {"task": "caption_match_pretraining", "data": data, "training": {**recipe["training"], "max_steps": 2}}
    preserve = {"distillation": 1.0, "ewc": 1.0}
    assert run_train(monkeypatch, tmp_path, recipe | {"start": begin, "preserve": preserve}) == 0
    history = json.loads((tmp_path / "run" / "direct" / "history.json").read_text())
    losses = [entry for entry in history if "loss" in entry]
    assert losses[-1]["loss_distillation"] > 0 and losses[-1]["loss_ewc"] > 0
    fisher = load_file(tmp_path / "run" / "fisher.safetensors")
    assert all(name.startswith("visual_bert.") for name in fisher) and sum(f.sum() for f in fisher.values()) > 0

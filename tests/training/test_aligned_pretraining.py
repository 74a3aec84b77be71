# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Supervised pre-training from a recipe: every family, resume, a supervised start, its card, errors."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForPreTraining

from grounded_attention.commands import pseudo_ground
from grounded_attention.training.loop.trainer import GroundingTrainer
from grounded_attention.training.recipes.recipe import RecipeError, load_recipe, recipe_yaml
from grounded_attention.utils.project import find_recipe
from tests.helpers.tiny_scenes import refusal, run_train, tiny_recipe

BOTH = "direct+grounding_alignment"
METHODS = ["none", "indirect", "semi_direct", BOTH]
SIZES = {
    "vl_bert": {"region_classes": 64},
    "visualbert": {},
    "vilbert": dict.fromkeys(("v_hidden_size", "v_intermediate_size", "bi_hidden_size"), 16)
    | {"v_num_hidden_layers": 2, "v_num_attention_heads": 2, "bi_num_attention_heads": 2, "v_target_size": 64},
    "lxmert": dict.fromkeys(("num_hidden_layers", "r_layers", "x_layers"), 1)
    | {"num_object_labels": 64, "visual_attr_loss": False},
}


def recipe_of(scenes, output, family="vl_bert", **sections):
    recipe = tiny_recipe(scenes, output, methods=[BOTH], task="pretraining")
    recipe["data"]["builder"] = "flickr30k_entities"
    config = {k: v for k, v in recipe["model"]["config"].items() if k != "region_classes"}
    config |= {"num_hidden_layers": 2, **SIZES[family], "spatial_encoding": "sine"}
    recipe["model"] |= {"family": family, "config": config}
    recipe["options"] = {"regions": None, "background": False, "word_probability": 0.3}
    return {**recipe, **sections}


def results(run):
    return json.loads((run / "results.json").read_text())["methods"]


def weights(folder):
    return load_file(folder / "model.safetensors")


def label(scenes, output, *arguments):
    """Pseudo-labels of all captions, by the simulated grounder."""
    places = ["--data-dir", scenes, "--images", scenes / "flickr30k-images", "--output", output]
    chosen = ["--captions", "flickr30k_entities", "--grounder", "scenes", "--phrases", "given"]
    assert pseudo_ground.main([*map(str, [*chosen, *places, *arguments])]) == 0


def test_pretraining_learns_from_pseudo_labels(scenes, tmp_path, monkeypatch, capsys):
    """Wrong boxes give other losses than the annotated ones, and methods that read no phrases are refused."""
    label(scenes, tmp_path / "right", "--boxes-per-phrase", 9)
    label(scenes, tmp_path / "wrong", "--boxes-per-phrase", 9, "--wrong", 1.0)
    losses = {}
    for name in ("gold", "right", "wrong"):
        recipe = recipe_of(scenes, tmp_path / name / "run")
        recipe["data"]["pseudo_labels"] = None if name == "gold" else str(tmp_path / name)
        assert run_train(monkeypatch, tmp_path, recipe) == 0
        history = json.loads((tmp_path / name / "run" / BOTH / "history.json").read_text())
        losses[name] = {key: history[0][f"loss_{key}"] for key in ("alignment", "text_to_region")}
    # The confidence of a box multiplies the loss of its pairs.
    assert losses["right"]["text_to_region"] == pytest.approx(losses["gold"]["text_to_region"])
    assert losses["right"]["alignment"] < losses["gold"]["alignment"]
    assert losses["wrong"]["text_to_region"] != pytest.approx(losses["gold"]["text_to_region"])


@pytest.mark.parametrize("family", SIZES)
def test_every_family_is_pretrained_with_every_method(scenes, tmp_path, monkeypatch, family):
    assert run_train(monkeypatch, tmp_path, recipe_of(scenes, tmp_path / "run", family, methods=METHODS)) == 0
    found = results(tmp_path / "run")
    assert list(found) == METHODS
    components = {"none": [], "indirect": ["grounding"], "semi_direct": ["text_to_region", "region_to_text"]}
    components[BOTH] = [*components["semi_direct"], "alignment"]
    for name, result in found.items():
        figures = result["figures"]["validation"]
        assert figures["text_to_region_tokens"] > 0
        assert 0 <= figures["relationship_accuracy"] <= 1
        assert ("alignment_accuracy" in figures) == (name == BOTH)
        history = json.loads((tmp_path / "run" / name / "history.json").read_text())
        supervised = {"grounding", "text_to_region", "region_to_text", "alignment"}
        logged = {key.removeprefix("loss_") for key in history[0]} & supervised
        assert logged == set(components[name])
        model = AutoModelForPreTraining.from_pretrained(tmp_path / "run" / name, trust_remote_code=True)
        assert (model.alignment_head is not None) == (name == BOTH)
        assert (model.grounding_head is not None) == (name == "indirect")
        assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert found[BOTH]["figures"]["validation"]["alignment_count"] % 2 == 0
    card = (tmp_path / "run" / BOTH / "README.md").read_text()
    assert "direct-supervision" in card
    assert "grounding_alignment-supervision" in card
    assert "direct and grounding-alignment attention supervision" in card
    assert "which phrases and regions belong together" in card
    assert "Chou, Shih-Han" in card


def test_the_other_methods_are_as_without_phrases(scenes, tmp_path, monkeypatch):
    for name, methods in (("alone", ["none"]), ("beside", ["none", "grounding_alignment"])):
        assert run_train(monkeypatch, tmp_path, recipe_of(scenes, tmp_path / name, methods=methods)) == 0
    alone, beside = (weights(tmp_path / name / "none") for name in ("alone", "beside"))
    assert alone.keys() == beside.keys()
    assert all(torch.equal(alone[name], beside[name]) for name in alone)


def test_a_resumed_training_is_bitwise_the_same(scenes, tmp_path, monkeypatch):
    """The draws of pairs too: it stops in the second epoch, and the head is a part of the checkpoint."""
    seen = []
    step = GroundingTrainer.training_step

    def recorded(self, model, inputs, *args, **kwargs):
        seen.append(inputs["alignment_pairs"]["pairs"].tolist())
        return step(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(GroundingTrainer, "training_step", recorded)
    training = tiny_recipe(scenes, tmp_path)["training"] | {"max_steps": 7, "save_strategy": "steps", "save_steps": 5}
    recipe = recipe_of(scenes, tmp_path / "run", training=training, resume=True)
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    folder = tmp_path / "run" / BOTH
    straight = list(seen)
    whole = weights(folder)
    assert straight[0] != straight[4]
    assert any(name.startswith("alignment_head.") for name in whole)
    for path in [path for path in folder.iterdir() if path.is_file()]:
        path.unlink()
    shutil.rmtree(folder / "checkpoint-7", ignore_errors=True)
    seen.clear()
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    again = weights(folder)
    assert seen == straight[5:]
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    seen.clear()
    workers = recipe_of(scenes, tmp_path / "workers", training=training | {"dataloader_num_workers": 2})
    assert run_train(monkeypatch, tmp_path, workers) == 0
    assert seen == straight


def test_a_start_may_be_supervised(scenes, tmp_path, monkeypatch):
    training = tiny_recipe(scenes, tmp_path)["training"]
    start = {"task": "pretraining", "training": training, "methods": ["grounding_alignment"]}
    start["supervision"] = {"options": {"grounding_alignment": {"level": "token"}}}
    start["data"] = {"builder": "flickr30k_entities"}
    recipe = tiny_recipe(scenes, tmp_path / "run", methods=["direct", BOTH], start=start)
    recipe["supervision"] = {"options": {"grounding_alignment": {"level": "token", "weight": 2.0}}}
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    history = json.loads((tmp_path / "run" / "start" / "history.json").read_text())
    assert history[0]["loss_alignment"] > 0
    first, direct, both = (weights(tmp_path / "run" / name) for name in ("start", "direct", BOTH))
    heads = {name for name in first if name.startswith("alignment_head.")}
    assert heads
    assert heads <= set(both)
    assert not heads & set(direct)
    # The task goes on with the head of the start: far from it after three steps is only a new one.
    moved = max((both[name] - first[name]).abs().max() for name in heads)
    assert moved < 1e-2
    card = (tmp_path / "run" / "start" / "README.md").read_text()
    assert "supervised with `grounding_alignment`" in card
    assert "grounding_alignment-supervision" in card
    shown = recipe_yaml(load_recipe(tmp_path / "recipe.yaml"))
    assert "level: token" in shown.split("start:")[1]
    assert "- grounding_alignment" in shown.split("start:")[1]
    # The recipe that was written is the same recipe.
    (tmp_path / "again.yaml").write_text(shown)
    again, first = (load_recipe(tmp_path / f"{name}.yaml").start.supervision for name in ("again", "recipe"))
    assert again == first


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("start.methods=[direct, none]", ["start.methods", "exactly one"]),
        ("start.data.builder=coco_captions", ["start.data", "needs grounding", "has a box"]),
        ("supervision.options.grounding_alignment={hidden: 3}", ["grounding_alignment.hidden"]),
        ("methods=[direct+semi_direct]", ["both supervise attention"]),
    ],
)
def test_a_wrong_key_or_value(scenes, tmp_path, monkeypatch, capsys, override, words):
    training = tiny_recipe(scenes, tmp_path)["training"]
    start = {"task": "pretraining", "training": training, "methods": ["direct"], "supervision": {}}
    start |= {"data": {"builder": "flickr30k_entities"}, "options": {"regions": False}}
    recipe = tiny_recipe(scenes, tmp_path / "run", methods=[BOTH], start=start)
    line = refusal(capsys, monkeypatch, tmp_path, recipe, override)
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.builder=coco_captions", ["grounding_alignment", "needs grounding", "has a box"]),
        ("data.regions=null", ["grounding_alignment", "data.regions is null"]),
        ("task=vqa", ["grounding_alignment", "'vqa' has none"]),
    ],
)
def test_pretraining_without_phrases_is_refused(scenes, tmp_path, monkeypatch, capsys, override, words):
    recipe = recipe_of(scenes, tmp_path / "run", methods=["grounding_alignment"])
    if override.startswith("task"):
        recipe["options"] = {"answers": {"fewest": 1}}
    line = refusal(capsys, monkeypatch, tmp_path, recipe, override)
    assert all(word in line for word in words), line


def test_the_recipe_of_the_paper_has_its_settings():
    recipe = load_recipe(find_recipe("vilbert_alignment_pretrain"))
    training = recipe.training
    options = recipe.supervision.options["grounding_alignment"]
    assert (8 * training["per_device_train_batch_size"], training["learning_rate"]) == (512, 1e-4)
    assert training["num_train_epochs"] == 10
    assert recipe.model.config["spatial_encoding"] == "sine"
    assert recipe.options["relationship_weight"] == 1
    assert options == {"level": "phrase", "weight": 20.0}
    assert recipe.methods == ["grounding_alignment"]
    assert recipe.supervision.weight == 1


def test_a_start_takes_methods_from_the_recipe_that_it_extends(tmp_path):
    (tmp_path / "base.yaml").write_text("task: pretraining\nmethods: [direct]\nsupervision: {weight: 2.0}\n")
    (tmp_path / "outer.yaml").write_text("methods: [none, direct]\nstart: {extends: base.yaml}\n")
    start = load_recipe(tmp_path / "outer.yaml").start
    assert start.methods == ["direct"]
    assert start.supervision.weight == 2.0
    (tmp_path / "base.yaml").write_text("task: pretraining\nmethods: [none, direct]\n")
    with pytest.raises(RecipeError, match=r"start\.methods must contain exactly one"):
        load_recipe(tmp_path / "outer.yaml")

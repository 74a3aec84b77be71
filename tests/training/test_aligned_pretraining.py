# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Supervised pre-training from a recipe: every family, resume, a supervised start, its card, errors."""

import pytest
import yaml
from transformers import AutoModelForPreTraining

from grounded_attention.commands import pseudo_ground
from grounded_attention.training.recipes.recipe import RecipeError, load_recipe, recipe_yaml
from grounded_attention.utils.project import find_recipe
from tests.helpers.tiny_scenes import tiny_recipe
from tests.training.runs import (
    assert_same_weights,
    assert_words,
    first_losses,
    results,
    saved_weights,
)

BOTH = "direct+grounding_alignment"
SUPERVISED = {"loss_grounding", "loss_text_to_region", "loss_region_to_text", "loss_alignment"}
LOSSES = {
    "none": set(),
    "indirect": {"loss_grounding"},
    "semi_direct": {"loss_text_to_region", "loss_region_to_text"},
    BOTH: {"loss_text_to_region", "loss_region_to_text", "loss_alignment"},
}
SIZES = """
vl_bert: {region_classes: 64}
visualbert: {}
vilbert: {v_hidden_size: 16, v_intermediate_size: 16, v_num_hidden_layers: 2, v_num_attention_heads: 2,
          bi_hidden_size: 16, bi_num_attention_heads: 2, v_target_size: 64}
lxmert: {num_hidden_layers: 1, r_layers: 1, x_layers: 1, num_object_labels: 64, visual_attr_loss: false}
"""
SIZES = yaml.safe_load(SIZES)


def recipe_of(scenes, output, family="vl_bert", **sections):
    options = {"regions": None, "background": False, "word_probability": 0.3}
    recipe = tiny_recipe(scenes, output, methods=[BOTH], task="pretraining", options=options)
    recipe["data"]["builder"] = "flickr30k_entities"
    del recipe["model"]["config"]["region_classes"]
    recipe["model"]["config"] |= {**SIZES[family], "spatial_encoding": "sine"}
    recipe["model"]["family"] = family
    return recipe | sections


def label(scenes, output, *arguments):
    """Pseudo-labels of all captions, by the simulated grounder."""
    chosen = "--captions flickr30k_entities --grounder scenes --phrases given --boxes-per-phrase 9"
    places = f"--data-dir {scenes} --images {scenes}/flickr30k-images --output {output}"
    assert pseudo_ground.main([*chosen.split(), *places.split(), *arguments]) == 0


def test_pretraining_learns_from_pseudo_labels(scenes, tmp_path, capsys, run_recipe):
    label(scenes, tmp_path / "right")
    label(scenes, tmp_path / "wrong", "--wrong", "1.0")
    run_recipe(recipe_of(scenes, tmp_path / "gold/run"))
    gold = first_losses(tmp_path / "gold/run" / BOTH)
    run_recipe(recipe_of(scenes, tmp_path / "right/run"), f"data.pseudo_labels={tmp_path}/right")
    right = first_losses(tmp_path / "right/run" / BOTH)
    run_recipe(recipe_of(scenes, tmp_path / "wrong/run"), f"data.pseudo_labels={tmp_path}/wrong")
    wrong = first_losses(tmp_path / "wrong/run" / BOTH)
    # The confidence of a box multiplies the loss of its pairs.
    assert right["loss_text_to_region"] == pytest.approx(gold["loss_text_to_region"])
    assert right["loss_alignment"] < gold["loss_alignment"]
    assert wrong["loss_text_to_region"] != pytest.approx(gold["loss_text_to_region"])


@pytest.mark.parametrize("family", SIZES)
def test_every_family_is_pretrained_with_every_method(scenes, tmp_path, family, run_recipe):
    run_recipe(recipe_of(scenes, tmp_path / "run", family, methods=[*LOSSES]))
    found = results(tmp_path / "run")["methods"]
    assert found.keys() == LOSSES.keys()
    for name, result in found.items():
        figures = result["figures"]["validation"]
        assert figures["text_to_region_tokens"] > 0
        assert 0 <= figures["relationship_accuracy"] <= 1
        assert ("alignment_accuracy" in figures) == (name == BOTH)
        assert SUPERVISED & first_losses(tmp_path / "run" / name).keys() == LOSSES[name]
        model = AutoModelForPreTraining.from_pretrained(tmp_path / "run" / name, trust_remote_code=True)
        assert (model.alignment_head is not None) == (name == BOTH)
        assert (model.grounding_head is not None) == (name == "indirect")
        assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert found[BOTH]["figures"]["validation"]["alignment_count"] % 2 == 0
    card = (tmp_path / "run" / BOTH / "README.md").read_text()
    assert "direct-supervision" in card
    assert "grounding_alignment-supervision" in card
    assert "which phrases and regions belong together" in card
    assert "Chou, Shih-Han" in card


def test_the_other_methods_are_as_without_phrases(scenes, tmp_path, run_recipe):
    run_recipe(recipe_of(scenes, tmp_path / "alone"), "methods=[none]")
    run_recipe(recipe_of(scenes, tmp_path / "beside"), "methods=[none,grounding_alignment]")
    assert_same_weights(saved_weights(tmp_path / "beside/none"), saved_weights(tmp_path / "alone/none"))


START = """
task: pretraining
methods: [grounding_alignment]
supervision: {options: {grounding_alignment: {level: token}}}
data: {builder: flickr30k_entities}
training: {max_steps: 3, per_device_train_batch_size: 4, logging_steps: 1, save_strategy: 'no', use_cpu: true}
"""
WRONG = "start={task: pretraining, methods: [direct], data: {builder: flickr30k_entities}, training: {use_cpu: true}}"


def test_a_start_may_be_supervised(scenes, tmp_path, run_recipe):
    recipe = tiny_recipe(scenes, tmp_path / "run", methods=["direct", BOTH])
    recipe["supervision"] = {"options": {"grounding_alignment": {"level": "token", "weight": 2.0}}}
    recipe["start"] = yaml.safe_load(START)
    run_recipe(recipe)
    assert first_losses(tmp_path / "run/start")["loss_alignment"] > 0
    first = saved_weights(tmp_path / "run/start")
    direct = saved_weights(tmp_path / "run/direct")
    both = saved_weights(tmp_path / "run" / BOTH)
    heads = {name for name in first if name.startswith("alignment_head.")}
    assert heads
    assert heads <= set(both)
    assert not heads & set(direct)
    # The task goes on with the head of the start: far from it after three steps is only a new one.
    for name in heads:
        assert (both[name] - first[name]).abs().max() < 1e-2
    card = (tmp_path / "run/start/README.md").read_text()
    assert "supervised with `grounding_alignment`" in card
    assert "grounding_alignment-supervision" in card
    # The recipe that is shown is the same recipe.
    given = load_recipe(tmp_path / "recipe.yaml")
    (tmp_path / "shown.yaml").write_text(recipe_yaml(given))
    shown = load_recipe(tmp_path / "shown.yaml").start
    assert shown.methods == ["grounding_alignment"]
    assert shown.supervision == given.start.supervision


@pytest.mark.parametrize(
    "override, words",
    [
        ("start.methods=[direct, none]", "start.methods ... exactly one"),
        ("start.data.builder=coco_captions", "start.data ... needs grounding ... has a box"),
        ("supervision.options.grounding_alignment={hidden: 3}", "grounding_alignment.hidden"),
        ("methods=[direct+semi_direct]", "both supervise attention"),
    ],
)
def test_a_wrong_key_or_value(scenes, tmp_path, override, words, refused):
    recipe = tiny_recipe(scenes, tmp_path / "run", methods=[BOTH])
    assert_words(refused(recipe, WRONG, override), words)


@pytest.mark.parametrize(
    "override, words",
    [
        ("data.builder=coco_captions", "grounding_alignment ... needs grounding ... has a box"),
        ("data.regions=null", "grounding_alignment ... data.regions is null"),
        ("task=vqa", "grounding_alignment ... 'vqa' has none"),
    ],
)
def test_pretraining_without_phrases_is_refused(scenes, tmp_path, override, words, refused):
    recipe = recipe_of(scenes, tmp_path / "run", methods=["grounding_alignment"])
    if override.startswith("task"):
        recipe["options"] = {"answers": {"fewest": 1}}
    assert_words(refused(recipe, override), words)


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

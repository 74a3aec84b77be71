# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pre-training from a recipe: its table, its checkpoint, its draws after a resume and in workers; errors."""

import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoModelForPreTraining

from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.processing.sequence_layouts import share_columns
from grounded_attention.supervision.grounding_alignment import PAIRS
from grounded_attention.training.loop.trainer import GroundingTrainer
from grounded_attention.training.recipes.recipe import load_recipe
from grounded_attention.utils.project import find_recipe
from tests.helpers.region_samples import copy_table
from tests.helpers.tiny_scenes import run_train, tiny_recipe, tiny_scenes
from tests.training.runs import assert_same_weights, assert_words, first_losses, kill, results, saved_weights


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    directory = tiny_scenes(tmp_path_factory.mktemp("scenes"))
    (directory / "sentences.txt").write_text("a red ball\nnear a blue box\n\ntwo cones stand here\n" * 5)
    return directory


def pretraining(scenes, output, **sections):
    options = {"background": False, "word_probability": 0.5, "region_probability": 0.5}
    recipe = tiny_recipe(scenes, output, methods=["none"], task="pretraining", options=options, **sections)
    recipe["data"] |= {"builder": "flickr30k_entities", "text_corpus": str(scenes / "sentences.txt")}
    return recipe


@pytest.fixture
def batches(monkeypatch):
    """What was drawn of every batch that is trained on: labels, and pairs of phrases and regions."""
    trained = []
    step = GroundingTrainer.training_step

    def recorded(self, model, inputs, *args, **kwargs):
        drawn = {"labels": inputs["labels"].tolist()}
        if PAIRS in inputs:
            drawn["pairs"] = inputs[PAIRS]["pairs"].tolist()
        trained.append(drawn)
        return step(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(GroundingTrainer, "training_step", recorded)
    return trained


def test_a_recipe_of_pretraining_alone(scenes, tmp_path, capsys, run_recipe):
    run_recipe(pretraining(scenes, tmp_path / "run"))
    printed = capsys.readouterr().out
    table = (tmp_path / "run/table.md").read_text()
    figures = results(tmp_path / "run")["methods"]["none"]["figures"]["validation"]
    losses = first_losses(tmp_path / "run/none")
    for name in ("words", "text_words", "regions", "relationship"):
        assert f"| {name}" in printed
        assert f"| {name}" in table
        assert 0 <= figures[f"{name}_accuracy"] <= 1
        assert 0 < figures[f"{name}_majority"] <= 1
        assert f"loss_{name}" in losses
    model = AutoModelForPreTraining.from_pretrained(tmp_path / "run/none", trust_remote_code=True)
    assert model.config.relationship_head
    assert type(model).__name__ == "VLBertForPreTraining"


@pytest.mark.parametrize(
    "method, sampling", [("none", "random"), ("none", "group_by_length"), ("direct+grounding_alignment", "random")]
)
def test_batches_are_the_same_in_workers_and_after_a_resume(scenes, tmp_path, batches, method, sampling, run_recipe):
    recipe = pretraining(scenes, tmp_path / "run", resume=True)
    recipe["methods"] = [method]
    if method != "none":  # texts alone have no phrases
        del recipe["data"]["text_corpus"]
    recipe["training"] |= {"max_steps": 6, "save_strategy": "steps", "save_steps": 5}
    recipe["training"]["train_sampling_strategy"] = sampling
    run_recipe(recipe)
    folder = tmp_path / "run" / method
    weights = saved_weights(folder)
    straight = list(batches)
    # the second epoch begins with the fifth
    assert len(straight) == 6
    for name, first in straight[0].items():
        assert straight[4][name] != first
    kill(folder)  # in the second epoch
    shutil.rmtree(folder / "checkpoint-6", ignore_errors=True)
    batches.clear()
    run_recipe(recipe)
    assert batches == straight[5:]
    assert_same_weights(saved_weights(folder), weights)
    batches.clear()
    run_recipe(recipe, f"output_dir={tmp_path}/workers", "training.dataloader_num_workers=2")
    assert batches == straight


def test_texts_alone_beside_supervised_images_change_no_measure(scenes, tmp_path, run_recipe):
    measured = {}
    for name in ("with", "without"):
        recipe = pretraining(scenes, tmp_path / name)
        recipe["methods"] = ["direct"]
        recipe["training"]["max_steps"] = 1
        recipe["training"]["learning_rate"] = 0.0
        if name == "without":
            del recipe["data"]["text_corpus"]
        run_recipe(recipe)
        figures = results(tmp_path / name)["methods"]["direct"]["figures"]["validation"]
        measured[name] = {key: value for key, value in figures.items() if "head" in key or "grounding" in key}
    assert measured["with"] and measured["with"] == measured["without"]


SHIPPED = ["pretrain_base", "pretrain_base_released", "pretrain_large", "pretrain_large_released", "vilbert_pretrain"]
SMALL = """
training.max_steps=2 training.per_device_train_batch_size=4 training.per_device_eval_batch_size=16
training.logging_steps=1 training.save_strategy=no training.eval_strategy=no training.use_cpu=true
training.disable_tqdm=true training.dataloader_num_workers=0
model.bert=null model.config.hidden_size=16 model.config.num_hidden_layers=2 model.config.num_attention_heads=2
model.config.intermediate_size=16 model.config.max_position_embeddings=128
data.builder=flickr30k_entities data.options={} data.limit.train=8 data.limit.validation=8 data.limit.test=8
""".split()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_scaled_down(scenes, tmp_path, name, run_recipe):
    table = RegionTable.open(scenes / "regions")
    classes = table[table.ids[0]].class_probs.shape[1]
    if load_recipe(find_recipe(name)).options["region_targets"] != "soft":
        classes += 1  # of the paper's hard labels, for the background
    places = [f"data.data_dir={scenes}", f"data.regions={scenes}/regions", f"model.tokenizer={scenes}/vocab.txt"]
    places += [f"output_dir={tmp_path}/run", f"model.config.region_classes={classes}"]
    expected = {"words_accuracy", "regions_accuracy", "relationship_accuracy"}
    if name.startswith("vilbert"):
        sizes = ("v_hidden_size", "v_intermediate_size", "bi_hidden_size")
        places += [f"model.config.{size}=16" for size in sizes]
    elif "released" in name:
        places.append(f"data.text_corpus={scenes}/sentences.txt")
        expected = {"words_accuracy", "regions_accuracy", "text_words_accuracy"}
    run_recipe({"extends": name}, *SMALL, *places)
    figures = results(tmp_path / "run")["methods"]["none"]["figures"]["test"]
    assert {key for key in figures if key.endswith("_accuracy")} == expected


def training_of(name):
    return load_recipe(find_recipe(name)).training


def test_the_settings_of_the_public_code_are_the_facts_table():
    for size in ("base", "large"):
        released = training_of(f"pretrain_{size}_released")
        assert released["learning_rate"] == pytest.approx(1e-7 * 4 * (32 + 32))
        assert (released["warmup_steps"], released["num_train_epochs"]) == (16000, 10)
        assert (released["max_grad_norm"], released["weight_decay"]) == (10, 1e-4)
        own = training_of(f"pretrain_{size}")
        rows = own["per_device_train_batch_size"] * own.get("gradient_accumulation_steps", 1)
        assert (4 * rows, own["learning_rate"], own["warmup_steps"]) == (256, 1e-4, 8000)


def test_the_settings_of_vilberts_pretraining_are_the_facts_table():
    recipe = load_recipe(find_recipe("vilbert_pretrain"))
    training = recipe.training
    assert (8 * training["per_device_train_batch_size"], training["learning_rate"]) == (512, 1e-4)
    assert (training["num_train_epochs"], training["warmup_steps"], training["max_grad_norm"]) == (10, 0.1, 0)
    regions = recipe.model.processor["max_regions"]
    text, kept = share_columns(np.array([40]), np.array([2]), np.array([1 + regions]), 73)
    assert recipe.options["max_sequence_length"] == 73
    assert (text[0], kept[0], regions) == (36, 37, 36)


@pytest.mark.parametrize(
    "name, rows, rate, epochs",
    [
        ("vqa", 128, 4e-5, 20),
        ("gqa", 128, 4e-5, 20),
        ("refcoco_plus", 256, 2e-5, 20),
        ("vcr", 64, 2e-5, 10),
        ("nlvr2", 64, 2e-5, 20),
    ],
)
def test_the_settings_of_vilberts_tasks_are_the_facts_table(name, rows, rate, epochs):
    recipe = load_recipe(find_recipe(f"vilbert_{name}"))
    training = recipe.training
    assert 4 * training["per_device_train_batch_size"] == rows
    assert (training["learning_rate"], training["num_train_epochs"]) == (rate, epochs)
    assert (recipe.model.family, training["weight_decay"], training["warmup_steps"]) == ("vilbert", 0.01, 0.1)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_table_without_classes_is_one_line(scenes, tmp_path, monkeypatch, capsys, workers):
    no_classes = partial(replace, classes=None, class_probs=None, scores=None)
    copy_table(scenes / "regions", tmp_path / "bare", no_classes)
    changes = [f"data.regions={tmp_path}/bare", f"training.dataloader_num_workers={workers}"]
    assert run_train(monkeypatch, tmp_path, pretraining(scenes, tmp_path / "run"), *changes) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line.lower()]
    assert len(lines) == 1 and lines[0].startswith("error: image ") and "detector classes" in lines[0], lines


@pytest.mark.parametrize(
    "override, words",
    [
        ("options.region_targets=both", "options.region_targets ... 'both'"),
        ("data.regions=null", "data.regions ... pretraining"),
        ("data.builder=coco", "data.builder ... 'coco' ... coco_captions"),
        ("data.builder=text_corpus", "data.builder ... text_corpus"),
        ("data.images=.", "data.images ... vision_config"),
    ],
)
def test_a_wrong_key_or_value(scenes, tmp_path, override, words, refused):
    assert_words(refused(pretraining(scenes, tmp_path / "run"), override), words)


def test_weights_are_finite(scenes, tmp_path, run_recipe):
    nothing = ["options.word_probability=0.0", "options.region_probability=0.0"]  # is ever masked
    run_recipe(pretraining(scenes, tmp_path / "run"), *nothing)
    model = AutoModelForPreTraining.from_pretrained(tmp_path / "run/none", trust_remote_code=True)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())

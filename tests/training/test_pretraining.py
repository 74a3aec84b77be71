# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pre-training from a recipe: its table, its checkpoint, its draws after a resume and in workers; errors."""

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModelForPreTraining

from grounded_attention.dataset_scripts.regions.table import RegionTable, RegionTableWriter
from grounded_attention.processing.sequence_layouts import share_columns
from grounded_attention.training.loop.trainer import GroundingTrainer
from grounded_attention.training.recipes.recipe import load_recipe
from grounded_attention.utils.project import find_recipe
from tests.helpers.tiny_scenes import refusal, run_train, tiny_recipe, tiny_scenes

OBJECTIVES = ("words", "text_words", "regions", "relationship")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    directory = tiny_scenes(tmp_path_factory.mktemp("scenes"))
    (directory / "sentences.txt").write_text("a red ball\nnear a blue box\n\ntwo cones stand here\n" * 5)
    return directory


def pretraining(scenes, output, **sections):
    recipe = tiny_recipe(scenes, output, methods=["none"], task="pretraining")
    recipe["data"] |= {"builder": "flickr30k_entities", "text_corpus": str(scenes / "sentences.txt")}
    recipe["options"] = {"background": False, "word_probability": 0.5, "region_probability": 0.5}
    return {**recipe, **sections}


@pytest.fixture
def batches(monkeypatch):
    """The labels of every batch that is trained on."""
    seen = []
    step = GroundingTrainer.training_step

    def recorded(self, model, inputs, *args, **kwargs):
        seen.append(inputs["labels"].tolist())
        return step(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(GroundingTrainer, "training_step", recorded)
    return seen


def test_a_recipe_of_pretraining_alone(scenes, tmp_path, monkeypatch, capsys):
    assert run_train(monkeypatch, tmp_path, pretraining(scenes, tmp_path / "run")) == 0
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "run" / "results.json").read_text())["methods"]["none"]
    for name in OBJECTIVES:
        assert f"| {name}" in printed
        assert f"| {name}" in (tmp_path / "run" / "table.md").read_text()
        figures = found["figures"]["validation"]
        assert 0 <= figures[f"{name}_accuracy"] <= 1
        assert 0 < figures[f"{name}_majority"] <= 1
    history = json.loads((tmp_path / "run" / "none" / "history.json").read_text())
    assert {f"loss_{name}" for name in OBJECTIVES} <= history[0].keys()
    model = AutoModelForPreTraining.from_pretrained(tmp_path / "run" / "none", trust_remote_code=True)
    assert model.config.relationship_head
    assert type(model).__name__ == "VLBertForPreTraining"


@pytest.mark.parametrize("sampling", ["random", "group_by_length"])
def test_batches_are_the_same_in_workers_and_after_a_resume(scenes, tmp_path, monkeypatch, batches, sampling):
    training = tiny_recipe(scenes, tmp_path)["training"] | {"max_steps": 6, "save_strategy": "steps", "save_steps": 5}
    training |= {"train_sampling_strategy": sampling}
    recipe = pretraining(scenes, tmp_path / "run", training=training, resume=True)
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    straight = list(batches)
    # the second epoch begins with the fifth
    assert len(straight) == 6
    assert straight[0] != straight[4]
    for path in [path for path in (tmp_path / "run" / "none").iterdir() if path.is_file()]:
        path.unlink()  # killed in the second epoch, before the model was saved
    batches.clear()
    shutil.rmtree(tmp_path / "run" / "none" / "checkpoint-6", ignore_errors=True)
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    assert batches == straight[5:]
    batches.clear()
    training |= {"dataloader_num_workers": 2}
    assert run_train(monkeypatch, tmp_path, pretraining(scenes, tmp_path / "workers", training=training)) == 0
    assert batches == straight


@pytest.mark.parametrize(
    "name",
    ["pretrain_base", "pretrain_base_released", "pretrain_large", "pretrain_large_released", "vilbert_pretrain"],
)
def test_a_shipped_recipe_scaled_down(scenes, tmp_path, monkeypatch, name):
    tiny = pretraining(scenes, tmp_path / "run")
    overrides = {f"model.config.{key}": value for key, value in tiny["model"]["config"].items()}
    overrides |= {f"training.{key}": value for key, value in tiny["training"].items()} | {"training.max_steps": 2}
    overrides |= {"training.dataloader_num_workers": 0, "training.eval_strategy": "no"}
    overrides |= {f"data.{key}": tiny["data"][key] for key in ("data_dir", "regions", "builder")}
    overrides |= {"data.limit.train": 8, "data.options": {}, "model.bert": None}
    overrides |= {"model.tokenizer": tiny["model"]["tokenizer"], "output_dir": str(tmp_path / "run")}
    table = RegionTable.open(scenes / "regions")
    columns = table[table.ids[0]].class_probs.shape[1]
    soft = load_recipe(find_recipe(name)).options["region_targets"] == "soft"
    # Of the paper's hard labels the background is one more.
    overrides |= {"model.config.region_classes": columns if soft else columns + 1}
    if name.startswith("vilbert"):
        sizes = dict.fromkeys(("v_hidden_size", "v_intermediate_size", "bi_hidden_size"), 16)
        overrides |= {f"model.config.{key}": value for key, value in sizes.items()}
    if "released" in name:
        overrides |= {"data.text_corpus": tiny["data"]["text_corpus"]}
    given = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    content = {"extends": str(find_recipe(name))}
    assert run_train(monkeypatch, tmp_path, content, *given) == 0
    figures = json.loads((tmp_path / "run" / "results.json").read_text())["methods"]["none"]["figures"]["test"]
    expected = {"words", "regions", "text_words" if "released" in name else "relationship"}
    assert {key.removesuffix("_accuracy") for key in figures if key.endswith("_accuracy")} == expected


def test_the_settings_of_the_public_code_are_the_facts_table():
    base, large = (load_recipe(find_recipe(f"pretrain_{size}_released")) for size in ("base", "large"))
    for recipe in (base, large):
        assert recipe.training["learning_rate"] == pytest.approx(1e-7 * 4 * (32 + 32))
        assert (recipe.training["warmup_steps"], recipe.training["num_train_epochs"]) == (16000, 10)
        assert recipe.training["max_grad_norm"] == 10
        assert recipe.training["weight_decay"] == 1e-4
    for size in ("base", "large"):
        training = load_recipe(find_recipe(f"pretrain_{size}")).training
        rows = training["per_device_train_batch_size"] * training.get("gradient_accumulation_steps", 1)
        assert (4 * rows, training["learning_rate"], training["warmup_steps"]) == (256, 1e-4, 8000)


def test_the_settings_of_vilbert_are_the_facts_table():
    recipe = load_recipe(find_recipe("vilbert_pretrain"))
    training = recipe.training
    regions = recipe.model.processor["max_regions"]
    assert (8 * training["per_device_train_batch_size"], training["learning_rate"]) == (512, 1e-4)
    assert (training["num_train_epochs"], training["warmup_steps"], training["max_grad_norm"]) == (10, 0.1, 0)
    text, kept = share_columns(np.array([40]), np.array([2]), np.array([1 + regions]), 73)
    assert recipe.options["max_sequence_length"] == 73
    assert (text[0], kept[0], regions) == (36, 37, 36)
    expected = {"vqa": (128, 4e-5, 20), "gqa": (128, 4e-5, 20), "refcoco_plus": (256, 2e-5, 20)}
    for name, settings in {**expected, "vcr": (64, 2e-5, 10), "nlvr2": (64, 2e-5, 20)}.items():
        recipe = load_recipe(find_recipe(f"vilbert_{name}"))
        training = recipe.training
        rows = 4 * training["per_device_train_batch_size"]
        assert (rows, training["learning_rate"], training["num_train_epochs"]) == settings, name
        assert (recipe.model.family, training["weight_decay"], training["warmup_steps"]) == ("vilbert", 0.01, 0.1)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_table_without_classes_is_one_line(scenes, tmp_path, monkeypatch, capsys, workers):
    whole = RegionTable.open(scenes / "regions")
    with RegionTableWriter(tmp_path / "bare", provenance={"source": "no classes"}) as writer:
        for image_id in whole.ids:
            record = whole[image_id]
            writer.write(type(record)(image_id, record.width, record.height, record.boxes, record.features))
    recipe = pretraining(scenes, tmp_path / "run")
    recipe["data"]["regions"] = str(tmp_path / "bare")
    recipe["training"]["dataloader_num_workers"] = workers
    assert run_train(monkeypatch, tmp_path, recipe) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error" in line.lower()]
    assert len(lines) == 1 and lines[0].startswith("error: image ") and "detector classes" in lines[0], lines


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("options.region_targets=both", ["options.region_targets", "'both'"]),
        ("data.regions=null", ["data.regions", "pretraining"]),
        ("data.builder=coco", ["data.builder", "'coco'", "coco_captions"]),
        ("data.builder=text_corpus", ["data.builder", "text_corpus"]),
        ("data.images=.", ["data.images", "vision_config"]),
    ],
)
def test_a_wrong_key_or_value(scenes, tmp_path, monkeypatch, capsys, override, words):
    line = refusal(capsys, monkeypatch, tmp_path, pretraining(scenes, tmp_path / "run"), override)
    assert all(word in line for word in words), line


def test_weights_are_finite(scenes, tmp_path, monkeypatch):
    recipe = pretraining(scenes, tmp_path / "run")
    recipe["options"] |= {"word_probability": 0.0, "region_probability": 0.0}  # nothing is ever masked
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    model = AutoModelForPreTraining.from_pretrained(tmp_path / "run" / "none", trust_remote_code=True)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())

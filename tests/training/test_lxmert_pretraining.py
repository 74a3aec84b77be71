# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The shipped recipes of LXMERT: its pre-training scaled down, then questions that start from its answers."""

import json

import pytest
import torch
from transformers import AutoModelForPreTraining

from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.modeling import LXMERTForVisualQuestionAnswering
from grounded_attention.training.experiments.models import load_model
from grounded_attention.training.recipes.recipe import Model, load_recipe
from grounded_attention.utils.project import find_recipe
from tests.helpers.tiny_scenes import run_train, tiny_recipe, tiny_scenes

ANSWERS = ["red", "blue", "2"]
SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "l_layers": 1, "r_layers": 1}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Scenes with other files of LXMERT's pre-training than their own, of few answers."""
    directory = tiny_scenes(tmp_path_factory.mktemp("scenes"))
    folder = directory / "lxmert"
    ids = RegionTable.open(directory / "regions").ids
    parts = {"mscoco_train": ids[:12], "mscoco_nominival": ids[12:14], "vgnococo": ids[14:16]}
    for name, images in {**parts, "mscoco_minival": ids[16:]}.items():
        records = [
            {
                "img_id": image,
                "sentf": {"mscoco": ["a red ball"], "vqa": ["what color is the ball", "how many boxes"]},
                "labelf": {"vqa": [{"red": 1, "blue": 0.3}, {"two": 1}]},
            }
            for image in images
        ]
        (folder / f"{name}.json").write_text(json.dumps(records))
    (folder / "all_ans.json").write_text(json.dumps([{"ans": answer, "dsets": ["vqa"]} for answer in ANSWERS]))
    return directory


@pytest.mark.parametrize("losses", ["released", "masked"])
def test_the_pretraining_recipe_scaled_down(scenes, tmp_path, monkeypatch, losses):
    tiny = tiny_recipe(scenes, tmp_path)
    output = tmp_path / "run"
    overrides = {f"model.config.{key}": value for key, value in SIZES.items()} | {"model.config.x_layers": 1}
    overrides |= {"model.config.visual_attr_loss": False, "model.config.visual_loss": losses}  # no attributes there
    size = RegionTable.open(scenes / "regions").feature_size
    classes = 64
    overrides |= {"model.config.visual_feat_dim": size, "model.processor.region_feature_size": size}
    overrides |= {"model.config.num_object_labels": classes, "model.tokenizer": tiny["model"]["tokenizer"]}
    overrides |= {f"training.{key}": value for key, value in tiny["training"].items()}
    overrides |= {"training.eval_strategy": "no", "training.dataloader_num_workers": 0, "output_dir": str(output)}
    overrides |= {"data.data_dir": str(scenes), "data.regions": tiny["data"]["regions"]}
    overrides |= {"options.answers": str(scenes / "lxmert" / "all_ans.json"), "options.region_probability": 0.5}
    given = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    assert run_train(monkeypatch, tmp_path, {"extends": str(find_recipe("lxmert_pretrain"))}, *given) == 0
    figures = json.loads((output / "results.json").read_text())["methods"]["none"]["figures"]["validation"]
    assert {"words_accuracy", "regions_accuracy", "relationship_accuracy", "answers_accuracy"} <= figures.keys()
    history = json.loads((output / "none" / "history.json").read_text())
    found = {"loss_words", "loss_regions", "loss_features", "loss_relationship", "loss_answers"}
    assert found <= history[0].keys()
    assert "loss_attributes" not in history[0]
    model = AutoModelForPreTraining.from_pretrained(output / "none", trust_remote_code=True)
    assert model.config.qa_answers == ANSWERS
    assert model.config.num_qa_labels == 3
    # Questions are answered from the same scores of the same answers.
    fields = {"answers": ["blue", "two", "green"]}
    tuned = LXMERTForVisualQuestionAnswering.from_pretrained(output / "none", **fields)
    rows = tuned.answer_head.logit_fc[3].weight
    learned = model.answer_head.logit_fc[3].weight
    assert torch.equal(rows[:2], learned[1:])
    assert not rows[2].any()
    # A checkpoint that has no list gets it from the recipe.
    model.config.qa_answers = None
    model.save_pretrained(tmp_path / "bare")
    source = Model(source=str(tmp_path / "bare"), config={"qa_answers": overrides["options.answers"]})
    again, _ = load_model(LXMERTForVisualQuestionAnswering, source, **fields)
    assert torch.equal(again.answer_head.logit_fc[3].weight, rows)


def test_the_settings_of_the_public_code_are_the_facts_table():
    recipe = load_recipe(find_recipe("lxmert_pretrain"))
    rows = 4 * recipe.training["per_device_train_batch_size"]
    training = recipe.training
    assert (rows, training["learning_rate"], training["num_train_epochs"]) == (256, 1e-4, 20)
    assert (training["warmup_steps"], training["max_grad_norm"]) == (0.05, 1.0)
    for name, rate in {"lxmert_vqa": 5e-5, "lxmert_gqa": 1e-5, "lxmert_nlvr2": 5e-5}.items():
        recipe = load_recipe(find_recipe(name))
        training = recipe.training
        assert (training["per_device_train_batch_size"], training["learning_rate"]) == (32, rate)
        assert (training["num_train_epochs"], training["warmup_steps"], training["max_grad_norm"]) == (4, 0.1, 5.0)
        assert recipe.model.family == "lxmert"

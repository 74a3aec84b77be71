# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The shipped recipes of LXMERT: its pre-training scaled down, then questions that start from its answers."""

import pytest
import torch
from transformers import AutoModelForPreTraining

from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.modeling import LXMERTForVisualQuestionAnswering
from grounded_attention.training.experiments.models import load_model
from grounded_attention.training.recipes.recipe import Model, load_recipe
from grounded_attention.utils.project import find_recipe
from tests.helpers.tiny_scenes import tiny_scenes
from tests.training.runs import first_losses, results

ANSWERS = ["red", "blue", "2"]
RECORD = """
{"img_id": "IMAGE", "sentf": {"mscoco": ["a red ball"], "vqa": ["what color is the ball", "how many boxes"]},
 "labelf": {"vqa": [{"red": 1, "blue": 0.3}, {"two": 1}]}}
"""
LIST = '[{"ans": "red", "dsets": ["vqa"]}, {"ans": "blue", "dsets": ["vqa"]}, {"ans": "2", "dsets": ["vqa"]}]'
# Of the recipe, scaled down; the regions of scenes have no attributes.
SMALL = """
output_dir=FOLDER/run
data.data_dir=SCENES data.regions=SCENES/regions
model.tokenizer=SCENES/vocab.txt model.config.hidden_size=16 model.config.num_attention_heads=2
model.config.intermediate_size=16 model.config.l_layers=1 model.config.r_layers=1 model.config.x_layers=1
model.config.visual_attr_loss=false model.config.num_object_labels=64 model.config.visual_feat_dim=2048
model.processor.region_feature_size=2048
training.max_steps=3 training.per_device_train_batch_size=4 training.per_device_eval_batch_size=16
training.logging_steps=1 training.save_strategy=no training.eval_strategy=no training.use_cpu=true
training.disable_tqdm=true training.dataloader_num_workers=0
options.answers=SCENES/lxmert/all_ans.json options.region_probability=0.5
"""


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Scenes with other files of LXMERT's pre-training than their own, of few answers."""
    directory = tiny_scenes(tmp_path_factory.mktemp("scenes"))
    folder = directory / "lxmert"
    ids = RegionTable.open(directory / "regions").ids
    parts = {"mscoco_train": ids[:12], "mscoco_nominival": ids[12:14], "vgnococo": ids[14:16]}
    for name, images in {**parts, "mscoco_minival": ids[16:]}.items():
        records = ",".join(RECORD.replace("IMAGE", image) for image in images)
        (folder / f"{name}.json").write_text(f"[{records}]")
    (folder / "all_ans.json").write_text(LIST)
    return directory


@pytest.mark.parametrize("losses", ["released", "masked"])
def test_the_pretraining_recipe_scaled_down(scenes, tmp_path, losses, run_recipe):
    changes = SMALL.replace("SCENES", str(scenes)).replace("FOLDER", str(tmp_path)).split()
    run_recipe({"extends": "lxmert_pretrain"}, *changes, f"model.config.visual_loss={losses}")
    figures = results(tmp_path / "run")["methods"]["none"]["figures"]["validation"]
    assert {"words_accuracy", "regions_accuracy", "relationship_accuracy", "answers_accuracy"} <= figures.keys()
    folder = tmp_path / "run/none"
    logged = first_losses(folder).keys()
    assert {"loss_words", "loss_regions", "loss_features", "loss_relationship", "loss_answers"} <= logged
    assert "loss_attributes" not in logged
    model = AutoModelForPreTraining.from_pretrained(folder, trust_remote_code=True)
    assert model.config.qa_answers == ANSWERS
    assert model.config.num_qa_labels == 3
    # Questions are answered from the same scores of the same answers.
    fields = {"answers": ["blue", "two", "green"]}
    tuned = LXMERTForVisualQuestionAnswering.from_pretrained(folder, **fields)
    rows = tuned.answer_head.logit_fc[3].weight
    learned = model.answer_head.logit_fc[3].weight
    assert torch.equal(rows[:2], learned[1:])
    assert not rows[2].any()
    # A checkpoint that has no list gets it from the recipe.
    model.config.qa_answers = None
    model.save_pretrained(tmp_path / "bare")
    source = Model(source=str(tmp_path / "bare"), config={"qa_answers": f"{scenes}/lxmert/all_ans.json"})
    again, _ = load_model(LXMERTForVisualQuestionAnswering, source, **fields)
    assert torch.equal(again.answer_head.logit_fc[3].weight, rows)


def test_the_settings_of_the_public_code_are_the_facts_table():
    training = load_recipe(find_recipe("lxmert_pretrain")).training
    assert (4 * training["per_device_train_batch_size"], training["learning_rate"]) == (256, 1e-4)
    assert (training["num_train_epochs"], training["warmup_steps"], training["max_grad_norm"]) == (20, 0.05, 1.0)


@pytest.mark.parametrize("name, rate", [("lxmert_vqa", 5e-5), ("lxmert_gqa", 1e-5), ("lxmert_nlvr2", 5e-5)])
def test_the_settings_of_the_tasks_are_the_facts_table(name, rate):
    recipe = load_recipe(find_recipe(name))
    training = recipe.training
    assert (training["per_device_train_batch_size"], training["learning_rate"]) == (32, rate)
    assert (training["num_train_epochs"], training["warmup_steps"], training["max_grad_norm"]) == (4, 0.1, 5.0)
    assert recipe.model.family == "lxmert"

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Recipes that start from a pre-training checkpoint train its heads on, say so once, and take a pooler from a BERT."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForPreTraining

from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter
from grounded_attention.modeling import VLBertConfig, VLBertForPreTraining
from grounded_attention.training.loop.trainer import GroundingTrainer
from grounded_attention.training.recipes.recipe import load_recipe
from grounded_attention.utils.project import find_recipe
from tests.helpers.tiny_scenes import run_train, tiny_recipe
from tests.helpers.tiny_two_streams import RECIPE_SIZES
from tests.helpers.vcr_files import CLIP, question, write, write_image
from tests.training.runs import assert_words, read_json, results, train_in

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
SIZES |= {"max_position_embeddings": 128}


@pytest.fixture(scope="module")
def vcr(tmp_path_factory, scenes):
    """A folder with VCR's files, and a table with the regions of its objects."""
    folder = tmp_path_factory.mktemp("vcr")
    for split in ("train", "val"):
        write(folder, split, [question(number, split) for number in range(2)])
    boxes = read_json(write_image(folder))["boxes"]
    normed = np.array(boxes, dtype=np.float32)[:, :4] / np.array([200, 100, 200, 100], dtype=np.float32)
    width = RegionTable.open(scenes / "regions").feature_size
    features = np.random.default_rng(0).random((len(boxes), width)).astype(np.float16)
    with RegionTableWriter(folder / "regions", provenance={"source": "objects"}) as writer:
        writer.write(Regions(Path(CLIP).name, 200, 100, normed.clip(0, 1), features))
    return folder


@pytest.fixture(scope="module", params=["vilbert", "lxmert"])
def pretrained(request, tmp_path_factory, scenes):
    """A checkpoint of a family, from two steps of the task `pretraining`."""
    family = request.param
    directory = tmp_path_factory.mktemp(request.param)
    recipe = tiny_recipe(scenes, directory / "run", task="pretraining", methods=["none"])
    recipe["options"] = {"background": False}
    recipe["training"]["max_steps"] = 2
    recipe["model"] |= {"family": family}
    recipe["model"]["config"] |= RECIPE_SIZES[family]
    train_in(directory, recipe)
    return family, directory / "run/none"


@pytest.fixture(scope="module")
def source(tmp_path_factory, scenes):
    """A pre-training checkpoint for the words and features of the scenes, without pooler."""
    torch.manual_seed(0)
    words = len((scenes / "vocab.txt").read_text().splitlines())
    width = RegionTable.open(scenes / "regions").feature_size
    model = VLBertForPreTraining(VLBertConfig(vocab_size=words, region_feature_size=width, region_classes=64, **SIZES))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    directory = tmp_path_factory.mktemp("pretrained")
    model.save_pretrained(directory)
    return directory, model.state_dict()


class Stop(Exception):
    """Has the weights that a training starts from."""


@pytest.fixture
def start_of(monkeypatch, tmp_path):
    """The weights that the training of a recipe starts from; it ends there."""

    def train(self, *args, **kwargs):
        raise Stop(self.model.state_dict())

    def run(recipe):
        with pytest.raises(Stop) as stopped:
            run_train(monkeypatch, tmp_path, recipe)
        return stopped.value.args[0]

    monkeypatch.setattr(GroundingTrainer, "train", train)
    return run


def recipe_of(task, scenes, vcr, output, source, **model):
    recipe = tiny_recipe(scenes, output, task=task, methods=["none"])
    processor = {"region_feature_size": RegionTable.open(scenes / "regions").feature_size}
    recipe["model"] = {"source": str(source), "tokenizer": f"{scenes}/vocab.txt", "processor": processor, **model}
    if task in ("vqa", "gqa"):
        recipe["options"] = {"answers": {"fewest": 1}}
    if task == "vcr":
        recipe["options"] = {"region_classes": True}
        splits = {"splits": ["train", "validation"]}
        recipe["data"] = {"data_dir": str(vcr), "regions": f"{vcr}/regions", "options": splits}
    return recipe


# Task -> its part of the name of a shipped recipe, whose fields and learning rates must suit the model.
SHIPPED = {task: task for task in ("vqa", "gqa", "vcr")}
SHIPPED |= {"referring_expressions": "refcoco_plus", "visual_reasoning": "nlvr2"}
# Every task that the families with two streams learn after pre-training, and a figure that it measures.
TASKS_OF_TWO_STREAMS = {
    "vgp": "vgp_accuracy",
    "phrase_grounding": "phrase_accuracy",
    "vqa": "vqa_accuracy",
    "gqa": "gqa_accuracy",
    "referring_expressions": "expressions_accuracy",
    "vcr": "vcr_accuracy",
    "visual_reasoning": "nlvr2_accuracy",
}


def test_training_starts_from_the_heads_of_pretraining(scenes, vcr, source, start_of, tmp_path, capsys):
    """Of VCR, whose texts have two of three token types; test_pretraining_handover.py in modeling/ has every head."""
    directory, weights = source
    started = start_of(recipe_of("vcr", scenes, vcr, tmp_path / "run", directory))
    assert torch.equal(started["region_class_head.dense.weight"], weights["region_head.dense.weight"])
    types = "vl_bert.embeddings.token_type_embeddings.weight"
    assert torch.equal(started[types], weights[types][[0, 0, 2]])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if f"from {directory}" in line]
    assert_words(line, "(VLBertForPreTraining): took  ... ; new: ")


@pytest.mark.parametrize("task", TASKS_OF_TWO_STREAMS)
def test_families_with_two_streams_learn_every_task(scenes, vcr, pretrained, tmp_path, run_recipe, task):
    family, source = pretrained
    recipe = recipe_of(task, scenes, vcr, tmp_path / "run", source)
    method = "direct" if task == "vgp" else "none"
    recipe["data"].pop("limit", None)
    if task == "visual_reasoning":
        recipe["data"]["options"] = {"image_id_format": "url_stem"}
    if task == "vcr":
        recipe["options"] = {"region_classes": False}
    if find_recipe(f"{family}_{SHIPPED.get(task)}").exists():
        shipped = load_recipe(find_recipe(f"{family}_{SHIPPED[task]}"))
        recipe["model"]["config"] = shipped.model.config
        recipe["training"]["learning_rate_mapping"] = shipped.training.get("learning_rate_mapping")
    run_recipe(recipe, f"methods=[{method}]", "training.max_steps=2")
    figures = results(tmp_path / "run")["methods"][method]["figures"]
    assert 0 <= figures["validation"][TASKS_OF_TWO_STREAMS[task]] <= 1
    losses = [entry["loss"] for entry in read_json(tmp_path / f"run/{method}/history.json") if "loss" in entry]
    assert len(losses) == 2
    assert all(map(math.isfinite, losses))


def test_a_bert_beside_the_source_gives_the_pooler(scenes, vcr, source, start_of, tmp_path):
    directory, weights = source
    words = "vl_bert.embeddings.word_embeddings.weight"
    bert = BertForPreTraining(BertConfig(**SIZES, vocab_size=len(weights[words])))
    bert.save_pretrained(tmp_path / "bert")
    started = start_of(recipe_of("vcr", scenes, vcr, tmp_path / "run", directory, bert=str(tmp_path / "bert")))
    assert torch.equal(started["vl_bert.pooler.dense.weight"], bert.bert.pooler.dense.weight)
    assert torch.equal(started[words], weights[words])


def test_a_configuration_against_the_weights_is_one_line(scenes, source, tmp_path, monkeypatch, capsys):
    output = tmp_path / "run"
    recipe = recipe_of("referring_expressions", scenes, None, output, source[0], config={"intermediate_size": 17})
    assert run_train(monkeypatch, tmp_path, recipe) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert_words(line, f"error: model.source {source[0]}:  ... remove the override")

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a user can get wrong ends `train.py` with one line that names it and exit code 2; nothing is left finished."""

import json
import os
import pickle
import re
import shutil

import pytest
import torch
from transformers import BertConfig, BertModel

from grounded_attention.training.loop.checkpoint import seal
from tests.helpers.region_samples import copy_table, without
from tests.helpers.tiny_scenes import refusal, run_train, tiny_recipe, tiny_scenes
from tests.training.runs import assert_words, changed_names, kill, read_json, saved_weights


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys, scenes):
    """Runs the tiny recipe with other sections or overrides and returns the one line of its refusal."""

    def run(*overrides, **sections):
        return refusal(capsys, monkeypatch, tmp_path, tiny_recipe(scenes, tmp_path / "run", **sections), *overrides)

    return run


def test_a_method_that_needs_grounding_on_data_without_boxes(refused, scenes, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(scenes, bare)
    for file in (bare / "flickr30k_entities/Annotations").glob("*.xml"):  # objects keep their names, no box
        file.write_text(re.sub("<bndbox>.*?</bndbox>", "<nobndbox>1</nobndbox>", file.read_text(), flags=re.DOTALL))
    assert_words(refused(f"data.data_dir={bare}"), f"'direct' needs grounding ... training rows ... {bare}")


@pytest.mark.parametrize(
    "override, words",
    [
        ("start.options.word_probabilty=0.1", "'start.options.word_probabilty' ... word_probability"),
        ("supervision.options.direct.layer=[1]", "layer ... layers"),
        ("supervision.options.direct.layers=[7]", "[7] ... 2 layers"),
        ("supervision.options.direct.target=all", "'all' ... 'uniform', 'sum' or 'any'"),
        ("model.config.hidden_sise=8", "hidden_sise ... hidden_size"),
        ("model.family_config.vlbert={}", "model.family_config.vlbert ... vl_bert"),
        ("model.family_config.visualbrt.region_classes=3", "family_config.visualbrt ... 'visualbert'"),
        ("model.config.num_attention_heads=3", "hidden_size ... 3"),
        ("model.processor.max_region=8", "max_region ... max_regions"),
        ("data.options.negative=random", "negative ... negatives"),
        ("training.max_steps=many", "max_steps ... many"),
        ("output_dir=", "output_dir"),
        ("data.regions=null", "'direct' ... data.regions"),
        ("model={source: checkpoints/absent}", "checkpoints/absent"),
        ("model.config.region_feature_size=64", "64 ... 2048 ... /regions"),
        ("training.learning_rate=.nan", "training.learning_rate ... finite"),
        ("training.resume_from_checkpoint=a", "training.resume_from_checkpoint has no effect ... resume=true"),
        ("supervision.weight=-1", "supervision.weight ... -1"),
        ("pictures=-1", "pictures ... -1"),
        ("methods=[]", "methods must be one or more"),
        ("seed=-1", "seed ... -1"),
        ("seed=99999999999999999999", "seed ... 4294967295"),
        ("model.config.hidden_dropout_prob=1.5", "model ... hidden_dropout_prob"),
        ("model.config.attn_implementation=flash_attention_2", "model ... FlashAttention2"),
        ("seed=!!python/name:os.system", "override seed ... invalid YAML"),
    ],
)
def test_a_wrong_key_or_value(refused, override, words):
    assert_words(refused(override), words)


def test_a_missing_data_file(refused, scenes, tmp_path):
    torn = tmp_path / "torn"
    shutil.copytree(scenes, torn)
    (torn / "vgp/val_data.csv").unlink()
    assert str(torn / "vgp/val_data.csv") in refused(f"data.data_dir={torn}")


@pytest.mark.parametrize(
    "override", ["data.data_dir=", "data.regions=", "model.tokenizer=", "model.source="], ids=lambda key: key[:-1]
)
def test_a_missing_file_or_folder(refused, tmp_path, override):
    assert str(tmp_path / "absent") in refused(f"{override}{tmp_path / 'absent'}")


@pytest.mark.parametrize("negatives", ["random", "nearest"])
def test_an_image_without_features(refused, scenes, tmp_path, negatives):
    missing = (scenes / "flickr30k_entities/train.txt").read_text().split()[0]
    table = copy_table(scenes / "regions", tmp_path / "regions", without(missing))
    line = refused(
        f"data.regions={table}", f"data.options.negatives={negatives}", "data.limit={validation: 8, test: 8}"
    )
    assert_words(line, f"{missing} ... {table}")


def test_a_checkpoint_of_another_family(refused, scenes, tmp_path):
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertModel(config).save_pretrained(tmp_path / "bert")
    line = refused(model={"source": str(tmp_path / "bert"), "tokenizer": str(scenes / "vocab.txt")})
    assert_words(line, f"{tmp_path}/bert ... 'bert' ... 'vl_bert'")


@pytest.mark.parametrize(
    "override, words",
    [
        ("training={use_cpu: true, warmup_steps: 1, lr_scheduler_kwargs: {no_such: 1}}", "training ... no_such"),
        ("training.learning_rate_mapping={no_such_weight: 1e-3}", "no_such_weight"),
        ("training.report_to=no_such_logger", "no_such_logger"),
        ("start={task: pretraining, training: {max_steps: ten}}", "start.training.max_steps"),
        ("start={task: pretraining, options: {region_targets: sft}, training: {use_cpu: true}}", "sft"),
    ],
)
def test_training_arguments_and_starts_that_cannot_be(refused, override, words, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert_words(refused(override), words)


def test_a_corrected_recipe_may_use_the_folder(tmp_path, monkeypatch, scenes, run_recipe):
    recipe = tiny_recipe(scenes, tmp_path / "run", methods=["none"])
    assert run_train(monkeypatch, tmp_path, recipe, "model.config.region_feature_size=64") == 2
    run_recipe(recipe)
    assert (tmp_path / "run/results.json").is_file()


def test_a_split_without_rows_is_an_error(tmp_path, monkeypatch, capsys):
    scenes = tiny_scenes(tmp_path / "scenes")
    (scenes / "flickr30k_entities/val.txt").write_text("")
    recipe = tiny_recipe(scenes, tmp_path / "run", task="pretraining", methods=["none"])
    recipe["data"]["builder"] = "flickr30k_entities"
    assert run_train(monkeypatch, tmp_path, recipe) == 2
    assert "data.builder flickr30k_entities: the split validation has no rows" in capsys.readouterr().err


def test_bf16_on_a_cpu_acts(tmp_path, scenes, run_recipe):
    """Other weights than in float32, stored as float32."""
    recipe = tiny_recipe(scenes, tmp_path / "run", methods=["none"])
    run_recipe(recipe)
    run_recipe(recipe, "training.bf16=true", f"output_dir={tmp_path}/bf16")
    found = saved_weights(tmp_path / "bf16/none")
    assert changed_names(found, saved_weights(tmp_path / "run/none"))
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}


def test_a_checkpoint_with_a_broken_header_or_an_absurd_size(refused, scenes, tmp_path):
    from tests.helpers.tiny_vl_bert import make_model

    source = tmp_path / "source"
    make_model().save_pretrained(source)
    (source / "model.safetensors").write_bytes(b"\xff" * 64)
    model = {"source": str(source), "tokenizer": str(scenes / "vocab.txt")}
    assert str(source) in refused(model=model)
    config = read_json(source / "config.json")
    (source / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 10**9}))
    assert "num_hidden_layers is 1000000000" in refused(model=model)


@pytest.mark.parametrize("state", ["optimizer.pt", "rng_state.pth"])
def test_a_saved_state_with_code_is_refused(scenes, tmp_path, monkeypatch, capsys, state, run_recipe):
    """A run that was killed is continued from its checkpoint, whose state somebody has replaced."""
    recipe = tiny_recipe(scenes, tmp_path / "run", methods=["none"], resume=True)
    recipe["training"] |= {"save_strategy": "steps", "save_steps": 2}
    run_recipe(recipe)
    kill(tmp_path / "run/none")
    checkpoint = tmp_path / "run/none/checkpoint-3"

    class Code:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'executed'}",)

    (checkpoint / state).write_bytes(pickle.dumps(Code()))
    seal(checkpoint)
    capsys.readouterr()
    assert run_train(monkeypatch, tmp_path, recipe) == 2
    printed = capsys.readouterr().err
    [line] = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert str(checkpoint) in line
    assert "would run code" in line
    assert "Traceback" not in printed
    assert not (tmp_path / "executed").exists()

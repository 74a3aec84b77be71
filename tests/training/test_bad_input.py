# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a user can get wrong ends `train.py` with one line that names it and exit code 2; nothing is left finished."""

import json
import os
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertConfig, BertModel

import train
from grounded_attention.dataset_scripts.regions.table import RegionTable, RegionTableWriter
from tests.helpers.tiny_scenes import refusal, run_train, tiny_recipe, tiny_scenes


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys, scenes):
    """Runs the tiny recipe with other sections or overrides and returns the one line of its refusal."""

    def run(*overrides, **sections):
        return refusal(capsys, monkeypatch, tmp_path, tiny_recipe(scenes, tmp_path / "run", **sections), *overrides)

    return run


def data_with(scenes, **changes):
    return {**tiny_recipe(scenes, scenes)["data"], **changes}


def test_a_method_that_needs_grounding_without_regions(refused, scenes):
    line = refused(methods=["none", "direct"], data=data_with(scenes, regions=None))
    assert "'direct'" in line
    assert "data.regions" in line
    assert "'none'" in line


def test_a_method_that_needs_grounding_on_data_without_boxes(refused, scenes, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(scenes, bare)
    for file in (bare / "flickr30k_entities" / "Annotations").glob("*.xml"):
        text = file.read_text()
        while "<bndbox>" in text:  # objects keep their names, no box
            start = text.index("<bndbox>")
            end = text.index("</bndbox>") + len("</bndbox>")
            text = text[:start] + "<nobndbox>1</nobndbox>" + text[end:]
        file.write_text(text)
    line = refused(data=data_with(scenes, data_dir=str(bare)))
    assert "'direct' needs grounding" in line
    assert "training rows" in line
    assert str(bare) in line


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("start.options.word_probabilty=0.1", ["'start.options.word_probabilty'", "word_probability"]),
        ("supervision.options.direct.layer=[1]", ["layer", "layers"]),
        ("supervision.options.direct.layers=[7]", ["[7]", "2 layers"]),
        ("supervision.options.direct.target=all", ["'all'", "'uniform', 'sum' or 'any'"]),
        ("model.config.hidden_sise=8", ["hidden_sise", "hidden_size"]),
        ("model.family_config.vlbert={}", ["model.family_config.vlbert", "vl_bert"]),
        ("model.family_config.visualbrt.region_classes=3", ["family_config.visualbrt", "'visualbert'"]),
        ("model.config.num_attention_heads=3", ["hidden_size", "3"]),
        ("model.processor.max_region=8", ["max_region", "max_regions"]),
        ("data.options.negative=random", ["negative", "negatives"]),
        ("training.max_steps=many", ["max_steps", "many"]),
        ("output_dir=", ["output_dir"]),
    ],
)
def test_a_wrong_key_or_value(refused, override, words):
    line = refused(override)
    for word in words:
        assert word in line


def test_a_missing_data_file(refused, scenes, tmp_path):
    torn = tmp_path / "torn"
    shutil.copytree(scenes, torn)
    (torn / "vgp" / "val_data.csv").unlink()
    assert str(torn / "vgp" / "val_data.csv") in refused(data=data_with(scenes, data_dir=str(torn)))


@pytest.mark.parametrize(
    "override", ["data.data_dir=", "data.regions=", "model.tokenizer=", "model.source="], ids=lambda key: key[:-1]
)
def test_a_missing_file_or_folder(refused, tmp_path, override):
    assert str(tmp_path / "absent") in refused(f"{override}{tmp_path / 'absent'}")


@pytest.mark.parametrize("negatives", ["random", "nearest"])
def test_an_image_without_features(refused, scenes, tmp_path, negatives):
    whole = RegionTable.open(scenes / "regions")
    table = tmp_path / "regions"
    missing = (scenes / "flickr30k_entities" / "train.txt").read_text().split()[0]
    with RegionTableWriter(table, provenance={"source": "all but one"}) as writer:
        for image_id in whole.ids:
            if image_id != missing:
                writer.write(whole[image_id])
    data = data_with(scenes, regions=str(table), options={"negatives": negatives})
    data["limit"].pop("train")
    line = refused(data=data)
    assert missing in line
    assert str(table) in line


def test_features_of_another_width(refused, scenes):
    model = tiny_recipe(scenes, scenes)["model"]
    line = refused(model={**model, "config": {**model["config"], "region_feature_size": 64}})
    assert "64" in line
    assert "2048" in line
    assert str(scenes / "regions") in line


def test_a_checkpoint_of_another_family(refused, scenes, tmp_path):
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertModel(config).save_pretrained(tmp_path / "bert")
    model = {"source": str(tmp_path / "bert"), "tokenizer": str(scenes / "vocab.txt")}
    line = refused(model=model)
    assert str(tmp_path / "bert") in line
    assert "'bert'" in line
    assert "'vl_bert'" in line


def test_a_checkpoint_that_is_not_there_is_named(refused, scenes):
    assert "checkpoints/absent" in refused(model={"source": "checkpoints/absent"})


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"warmup_steps": 1, "lr_scheduler_kwargs": {"no_such": 1}}, ["training", "no_such"]),
        ({"learning_rate_mapping": {"no_such_weight": 1e-3}}, ["no_such_weight"]),
        ({"report_to": "no_such_logger"}, ["no_such_logger"]),
    ],
)
def test_training_arguments_that_cannot_be(refused, scenes, training, words, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    whole = {**tiny_recipe(scenes, scenes)["training"], **training}
    line = refused(training={name: value for name, value in whole.items() if value is not None})
    for word in words:
        assert word in line


def test_a_start_that_cannot_be(refused, scenes):
    training = {**tiny_recipe(scenes, scenes)["training"], "max_steps": "ten"}
    assert "start.training.max_steps" in refused(start={"task": "pretraining", "training": training})
    wrong = {"task": "pretraining", "options": {"region_targets": "sft"}, "training": {"use_cpu": True}}
    assert "sft" in refused(start=wrong)


def test_a_corrected_recipe_may_use_the_folder(tmp_path, monkeypatch, capsys, scenes):
    recipe = tiny_recipe(scenes, tmp_path / "run", methods=["none"])
    assert run_train(monkeypatch, tmp_path, recipe, "model.config.region_feature_size=64") == 2
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    assert (tmp_path / "run" / "results.json").is_file()


def test_a_split_without_rows_is_an_error(tmp_path, monkeypatch, capsys):
    scenes = tiny_scenes(tmp_path / "scenes")
    (scenes / "flickr30k_entities" / "val.txt").write_text("")
    recipe = tiny_recipe(scenes, tmp_path / "run", task="pretraining", methods=["none"])
    recipe["data"]["builder"] = "flickr30k_entities"
    assert run_train(monkeypatch, tmp_path, recipe) == 2
    assert "data.builder flickr30k_entities: the split validation has no rows" in capsys.readouterr().err


def test_a_recipe_behind_links_in_a_circle_is_an_error(tmp_path, monkeypatch, capsys):
    (tmp_path / "a.yaml").symlink_to(tmp_path / "b.yaml")
    (tmp_path / "b.yaml").symlink_to(tmp_path / "a.yaml")
    monkeypatch.setattr(sys, "argv", ["train.py", str(tmp_path / "a.yaml")])
    assert train.main() == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "a.yaml" in error
    assert error.count("\n") == 1


def test_bf16_on_a_cpu_acts(tmp_path, monkeypatch, scenes):
    """Other weights than in float32, stored as float32."""
    found = {}
    for bf16 in (False, True):
        recipe = tiny_recipe(scenes, tmp_path / str(bf16), methods=["none"])
        recipe["training"]["bf16"] = bf16
        assert run_train(monkeypatch, tmp_path, recipe) == 0
        found[bf16] = load_file(tmp_path / str(bf16) / "none" / "model.safetensors")
    assert any(not torch.equal(found[True][name], found[False][name]) for name in found[True])
    assert {tensor.dtype for tensor in found[True].values()} == {torch.float32}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.learning_rate=.nan", ["training.learning_rate", "finite"]),
        ("training.resume_from_checkpoint=a", ["training.resume_from_checkpoint has no effect", "resume=true"]),
        ("supervision.weight=-1", ["supervision.weight", "-1"]),
        ("pictures=-1", ["pictures", "-1"]),
        ("methods=[]", ["methods must be one or more"]),
        ("seed=-1", ["seed", "-1"]),
        ("seed=99999999999999999999", ["seed", "4294967295"]),
        ("model.config.hidden_dropout_prob=1.5", ["model", "hidden_dropout_prob"]),
        ("model.config.attn_implementation=flash_attention_2", ["model", "FlashAttention2"]),
        ("seed=!!python/name:os.system", ["override seed", "invalid YAML"]),
    ],
)
def test_values_out_of_range(refused, override, words):
    line = refused(override)
    for word in words:
        assert word in line


def test_a_checkpoint_with_a_broken_header_or_an_absurd_size(refused, scenes, tmp_path):
    from tests.helpers.tiny_vl_bert import make_model

    source = tmp_path / "source"
    make_model().save_pretrained(source)
    (source / "model.safetensors").write_bytes(b"\xff" * 64)
    model = {"source": str(source), "tokenizer": str(scenes / "vocab.txt")}
    assert str(source) in refused(model=model)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 10**9}))
    assert "num_hidden_layers is 1000000000" in refused(model=model)


@pytest.mark.parametrize("state", ["optimizer.pt", "rng_state.pth"])
def test_a_saved_state_with_code_is_refused(scenes, tmp_path, monkeypatch, capsys, state):
    """A run that was killed is continued from its checkpoint, whose state somebody has replaced."""
    import pickle

    from grounded_attention.training.loop.checkpoint import seal

    recipe = tiny_recipe(scenes, tmp_path / "run", methods=["none"], resume=True)
    recipe["training"] |= {"save_strategy": "steps", "save_steps": 2}
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    directory = tmp_path / "run" / "none"
    for path in [path for path in directory.iterdir() if path.is_file()]:
        path.unlink()
    checkpoint = max(directory.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))

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

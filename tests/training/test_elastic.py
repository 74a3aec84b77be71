# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A training continued with other processes has the same steps; sharded weights (FSDP2) are those of one process."""

import json
import shutil

import pytest
from safetensors.torch import load_file

from grounded_attention.modeling import VLBertForVGP
from grounded_attention.training.loop.checkpoint import is_complete, prepare_resume
from grounded_attention.training.loop.trainer import unit_names
from grounded_attention.training.publish.hub import model_files
from grounded_attention.training.recipes.recipe import RecipeError
from tests.helpers.tiny_scenes import tiny_scenes
from tests.helpers.tiny_trainer import assert_same
from tests.helpers.tiny_vlm_models import make_pair
from tests.helpers.tiny_vlm_recipes import vlm_recipe
from tests.helpers.two_processes import run_two
from tests.training.elastic_steps import ALONE, STEPS, STOP, TOGETHER, elastic_trainer, train
from tests.training.not_finite import ROW
from tests.training.runs import read_json

CHECKPOINT = f"checkpoint-{STOP}"


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """A training of one process."""
    folder = tmp_path_factory.mktemp("one")
    train(folder, **ALONE)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory, one):
    """Every training of two processes, in one launch."""
    output = tmp_path_factory.mktemp("two")
    for name in ("two", "continued", "loss", "gradient", "sharded", "sharded_continued"):
        (output / name).mkdir()
    run_two("tests.training.elastic_steps", output, one)
    return output


def assert_same_training(first, second, tolerance=1e-6):
    losses = read_json(second / "after.json")["losses"]
    assert len(losses) == STEPS
    for found, expected in zip(losses, read_json(first / "after.json")["losses"], strict=True):
        assert len(found) > 2
        assert found == pytest.approx(expected, abs=tolerance)
    assert_same(load_file(first / "after.safetensors"), load_file(second / "after.safetensors"), tolerance)


def test_two_processes_are_one(one, two):
    assert_same_training(one, two / "two")


def test_one_process_continues_what_two_began(one, two, tmp_path):
    train(tmp_path, two / "two" / CHECKPOINT, **TOGETHER)
    assert_same_training(one, tmp_path)


def test_two_processes_continue_what_one_began(one, two):
    assert_same_training(one, two / "continued")


@pytest.mark.parametrize("name", ["loss", "gradient"])
def test_all_processes_stop_at_a_step_that_is_not_finite_in_one_of_them(two, name):
    first = (two / f"{name}_0.txt").read_text()
    second = (two / f"{name}_1.txt").read_text()
    assert first.split(";")[0] == second.split(";")[0]
    assert repr(ROW) in first


def test_sharded_weights_are_those_of_one_process(one, two):
    assert_same_training(one, two / "sharded", tolerance=1e-5)
    assert_same_training(two / "sharded", two / "sharded_continued")


def test_a_sharded_checkpoint_is_a_plain_one_on_the_hub(one, two):
    folder = two / "sharded" / f"checkpoint-{STEPS}"
    assert is_complete(folder)
    names = set(model_files(folder))
    assert {"config.json", "model.safetensors"} <= names
    assert not {"optimizer.bin", "pytorch_model_fsdp.bin", "step.json"} & names
    # The code that the configuration names is the model's, as without sharding.
    plain = one / folder.name
    assert read_json(plain / "config.json")["auto_map"] == read_json(folder / "config.json")["auto_map"]
    assert {path.name for path in plain.glob("*.py")} == {path.name for path in folder.glob("*.py")}
    weights = load_file(two / "sharded/after.safetensors")
    assert_same(dict(VLBertForVGP.from_pretrained(folder).state_dict()), weights, 0)


def test_a_sharded_checkpoint_is_not_continued_by_one_process(two, tmp_path):
    with pytest.raises(RecipeError, match="was written with sharding"):
        prepare_resume(elastic_trainer(tmp_path, **TOGETHER), two / "sharded" / CHECKPOINT)


@pytest.mark.parametrize("processes, accumulation, now", [(3, 1, 3), (2, 2, 4), (1, 1, 1)])
def test_one_process_has_the_rows_of_a_step_of_several(one, tmp_path, processes, accumulation, now):
    folder = shutil.copytree(one / CHECKPOINT, tmp_path / CHECKPOINT)
    found = read_json(folder / "step.json")
    found["rows"] = 4 * processes * accumulation
    (folder / "step.json").write_text(json.dumps(found))
    trainer = elastic_trainer(tmp_path, **ALONE)
    prepare_resume(trainer, folder)
    assert trainer.args.gradient_accumulation_steps == now


def test_units_of_sharding_are_parts_of_the_model():
    model = make_pair("llava")[0]
    assert {"LlamaDecoderLayer", "CLIPEncoderLayer"} <= set(unit_names(model))
    assert set(unit_names(model)) <= {type(module).__name__ for module in model.modules()}


def test_a_sharded_vision_language_model_is_continued(tmp_path):
    """No gradient reaches the last layer of its vision tower, of which the optimizer has no state."""
    run = tmp_path / "run"
    recipe = vlm_recipe(tiny_scenes(tmp_path / "scenes"), run)
    recipe["training"] |= {"fsdp": True, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    file = tmp_path / "recipe.yaml"
    file.write_text(json.dumps(recipe))
    run_two("grounded_attention", "train", file)
    straight = load_file(run / "direct/model.safetensors")
    (run / "results.json").unlink()
    shutil.rmtree(run / "direct/checkpoint-4")
    for path in (run / "direct").iterdir():
        if path.is_file():
            path.unlink()
    run_two("grounded_attention", "train", file, "resume=true")
    assert_same(load_file(run / "direct/model.safetensors"), straight, 0)

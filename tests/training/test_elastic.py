# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A training continued with other processes has the same steps; sharded weights (FSDP2) are those of one process."""

import json
import shutil

import pytest
from safetensors.torch import load_file

from grounded_attention.modeling import VLBertForVGP
from grounded_attention.training.loop.checkpoint import is_complete
from grounded_attention.training.loop.resume import (
    differences,
    environment,
    prepare_resume,
    read_environment,
    share_batch,
)
from grounded_attention.training.loop.trainer import unit_names
from grounded_attention.training.publish.hub import model_files
from grounded_attention.training.recipes.recipe import RecipeError
from tests.helpers.tiny_trainer import assert_same
from tests.helpers.tiny_vlm_models import make_pair
from tests.helpers.two_processes import run_two
from tests.training.elastic_steps import ALONE, LARGE, STEPS, STOP, TOGETHER, elastic_trainer, train
from tests.training.not_finite import spoil_gradient, spoil_loss

CHECKPOINT = f"checkpoint-{STOP}"


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """A training of one process."""
    folder = tmp_path_factory.mktemp("one")
    train(folder, **ALONE)
    (folder / "large").mkdir()
    train(folder / "large", **LARGE)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory, one):
    """Every training of two processes, in one launch."""
    output = tmp_path_factory.mktemp("two")
    for name in ("two", "continued", "shared", "loss", "gradient", "sharded", "sharded_continued"):
        (output / name).mkdir()
    (output / "stderr").write_text(run_two("tests.training.elastic_steps", output, one))
    return output


def assert_same_training(first, second, steps=STEPS, tolerance=1e-6):
    losses = [json.loads((folder / "after.json").read_text())["losses"] for folder in (first, second)]
    assert len(losses[0]) == len(losses[1]) == steps
    for expected, found in zip(*losses, strict=True):
        assert found == pytest.approx(expected, abs=tolerance) and len(found) > 2
    assert_same(*(load_file(folder / "after.safetensors") for folder in (first, second)), tolerance)


def test_two_processes_are_one(one, two):
    assert_same_training(one, two / "two")


def test_one_process_continues_what_two_began(one, two, tmp_path, capsys):
    train(tmp_path, two / "two" / CHECKPOINT, **TOGETHER)
    assert_same_training(one, tmp_path)
    assert "was written by 2 processes, now 1: to keep the rows of a step, each process has batches of 4 and " in (
        capsys.readouterr().err
    )


def test_two_processes_continue_what_one_began(one, two):
    assert_same_training(one, two / "continued")
    assert_same_training(one / "large", two / "shared")
    text = (two / "stderr").read_text()
    assert text.count("was written by 1 process, now 2") == 2  # once each: the main process alone says it
    assert "batches of 4 and accumulates 1" in text


@pytest.mark.parametrize(
    ("name", "spoil"), [("loss", spoil_loss), ("gradient", lambda trainer: spoil_gradient(trainer, float("inf")))]
)
def test_all_processes_skip_a_step_that_is_not_finite_in_one_of_them(two, tmp_path, name, spoil):
    train(tmp_path, spoil=spoil, skip_nonfinite_batches=True, **ALONE)
    assert_same_training(tmp_path, two / name, steps=3)
    found = [json.loads((folder / "after.json").read_text())["skipped"] for folder in (tmp_path, two / name)]
    assert found == [3, 3]  # the row is in one step of each epoch


def test_sharded_weights_are_those_of_one_process(one, two):
    assert_same_training(one, two / "sharded", tolerance=1e-5)
    assert_same_training(two / "sharded", two / "sharded_continued")


def test_a_sharded_checkpoint_is_a_plain_one_on_the_hub(one, two):
    folder = two / "sharded" / f"checkpoint-{STEPS}"
    assert is_complete(folder)
    names = set(model_files(folder))
    assert {"config.json", "model.safetensors"} <= names
    assert not {"optimizer.bin", "pytorch_model_fsdp.bin", "environment.json"} & names
    # The code that the configuration names is the model's, as without sharding.
    plain = one / folder.name
    maps = [json.loads((each / "config.json").read_text())["auto_map"] for each in (plain, folder)]
    assert maps[0] == maps[1] and {path.name for path in plain.glob("*.py")} == {
        path.name for path in folder.glob("*.py")
    }
    weights = load_file(two / "sharded" / "after.safetensors")
    assert_same(dict(VLBertForVGP.from_pretrained(folder).state_dict()), weights, 0)


def test_a_sharded_checkpoint_is_not_continued_by_one_process(two, tmp_path):
    with pytest.raises(RecipeError, match=r"was written with sharding.*continue with at least 2 processes"):
        prepare_resume(elastic_trainer(tmp_path, **TOGETHER), two / "sharded" / CHECKPOINT)


@pytest.mark.parametrize(
    ("processes", "batch", "accumulation", "now", "expected"),
    [(2, 4, 1, 1, (4, 2)), (1, 4, 2, 2, (4, 1)), (1, 8, 1, 2, (4, 1)), (2, 3, 1, 3, (2, 1)), (4, 6, 3, 8, (3, 3))],
)
def test_the_rows_of_a_step_are_shared_anew(tmp_path, processes, batch, accumulation, now, expected):
    before = {"processes": processes, "batch": batch, "accumulation": accumulation}
    found = share_batch(before, now, tmp_path)
    assert found == expected and found[0] * found[1] * now == processes * batch * accumulation


def test_a_step_that_cannot_be_shared_is_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"a step has 8 rows, which 3 processes .*: continue with 1, 2, 4 processes"):
        share_batch({"processes": 2, "batch": 4, "accumulation": 1}, 3, tmp_path)


def test_other_versions_and_code_are_named(one, tmp_path, capsys):
    folder = shutil.copytree(one / CHECKPOINT, tmp_path / CHECKPOINT)
    found = read_environment(folder)
    name, digest = next(iter(found["code"].items()))
    found["versions"]["transformers"], found["code"][name] = "4.9.1", "0" * 12
    (folder / "environment.json").write_text(json.dumps(found))
    trainer = elastic_trainer(tmp_path, **ALONE)
    prepare_resume(trainer, folder)
    now = environment(trainer.args, sharded=False)["versions"]["transformers"]
    text = capsys.readouterr().err
    assert f"transformers 4.9.1 -> {now}; code: {name} {'0' * 12} -> {digest}\n" in text and text.count("\n") == 1
    prepare_resume(trainer, one / CHECKPOINT)  # the same software: not a word
    assert not capsys.readouterr().err


def test_units_of_sharding_are_parts_of_the_model():
    model = make_pair("llava")[0]
    assert {"LlamaDecoderLayer", "CLIPEncoderLayer"} <= set(unit_names(model))
    assert set(unit_names(model)) <= {type(module).__name__ for module in model.modules()}


def test_many_changed_files_are_counted():
    before = {"versions": {"torch": "1"}, "code": {f"{n}.py": "a" for n in range(9)}}
    now = {"versions": {"torch": "1"}, "code": {f"{n}.py": "b" for n in range(9)}}
    assert differences(before, now) == ["code: " + ", ".join(f"{n}.py a -> b" for n in range(5)) + " and 4 more"]

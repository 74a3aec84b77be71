# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A training that is continued from any of its checkpoints ends with the same bits: weights and logged losses."""

from pathlib import Path

import pytest
import yaml

from grounded_attention.training.loop.checkpoint import is_complete, rotate
from tests.helpers.tiny_trainer import assert_same, weights
from tests.helpers.two_processes import run_two
from tests.training.resume_steps import assert_equal_bits, train_and_continue, trainer_of
from tests.training.runs import changed_names, saved_weights

# Name -> arguments of the Trainer.
CASES = """
plain: {}
the last step is the end of an epoch: {max_steps: 8}
logs that do not divide the saves: {logging_steps: 3, save_steps: 2, max_steps: 8}
accumulation: {per_device_train_batch_size: 2, gradient_accumulation_steps: 2, logging_steps: 2}
accumulation with a remainder: {per_device_train_batch_size: 3, gradient_accumulation_steps: 2}
loader workers: {dataloader_num_workers: 2, max_steps: 6}
loader workers that stay: {dataloader_num_workers: 1, dataloader_persistent_workers: true}
lengths: {train_sampling_strategy: group_by_length}
adam with a schedule, dropout, accumulation and rates of its own:
  {optim: adamw_torch, lr_scheduler_type: cosine, warmup_steps: 2, gradient_accumulation_steps: 2,
   per_device_train_batch_size: 2, learning_rate_mapping: {region_encoder: 0.001}, learning_rate: 0.01}
whole epochs: {max_steps: -1, num_train_epochs: 2}
logs and saves of epochs: {logging_strategy: epoch, save_strategy: epoch, num_train_epochs: 3, max_steps: -1}
evaluation: {eval_strategy: steps, eval_steps: 2}
"""
CASES = yaml.safe_load(CASES)


@pytest.mark.parametrize("case", CASES)
def test_continued_from_any_checkpoint(tmp_path, case):
    kept = (0, -2, -1) if case in ("plain", "logs that do not divide the saves") else (0, -1)
    for straight, resumed in train_and_continue(tmp_path, CASES[case], kept):
        assert_equal_bits(straight, resumed)


def test_two_processes_continue_equally(tmp_path):
    """With loader workers, and with losses between two logs."""
    run_two("tests.training.resume_steps", tmp_path)
    assert len(list(tmp_path.glob("equal-*-of-2"))) == 2


# What is not equal, and why.


def test_ignore_data_skip_draws_the_rows_of_the_epoch_again(tmp_path):
    """The option asks for it: a continued run begins its epoch again, so it trains on other rows."""
    for straight, resumed in train_and_continue(tmp_path, {"ignore_data_skip": True}, kept=(0,)):
        assert resumed.state.global_step == straight.state.global_step
        assert changed_names(weights(resumed.model), weights(straight.model))


def evaluations(trainer):
    return [entry for entry in trainer.state.log_history if "eval_vgp_accuracy" in entry]


def test_an_evaluation_at_the_end_of_an_epoch_is_not_repeated(tmp_path):
    """A checkpoint of the last step of an epoch is older than the evaluation after it; the weights are equal."""
    arguments = {"eval_strategy": "epoch", "save_steps": 4, "max_steps": 8}
    for straight, resumed in train_and_continue(tmp_path, arguments, kept=(0,)):
        assert_same(weights(straight.model), weights(resumed.model), 0)
        assert [entry["step"] for entry in evaluations(straight)] == [4, 8]
        assert [entry["step"] for entry in evaluations(resumed)] == [8]


# Checkpoints that are kept


@pytest.mark.parametrize(
    "before, step, limit, best, after",
    [
        ("1 2 3", 3, 1, None, "3"),
        ("1 2 10", 10, 2, None, "2 10"),
        ("1 2 3", 3, 0, None, "1 2 3"),
        ("1 2 3", 3, None, None, "1 2 3"),
        ("1 2 9", 2, 1, None, "2"),  # 9 is incomplete, or the run had continued from it
        ("1 2 9", 2, 2, None, "1 2"),
        ("1 2 3", 3, 1, 1, "1 3"),
        ("1 2 3 4", 4, 2, 1, "1 4"),
    ],
)
def test_rotation(tmp_path, before, step, limit, best, after):
    for name in (*before.split(), "notes"):
        (tmp_path / f"checkpoint-{name}").mkdir()
    rotate(tmp_path, limit, step, best and f"{tmp_path}/checkpoint-{best}")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"checkpoint-{name}" for name in (*after.split(), "notes")}


def test_the_best_checkpoint_is_kept_and_loaded(tmp_path):
    arguments = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True, "save_total_limit": 1}
    arguments |= {"metric_for_best_model": "eval_vgp_accuracy", "max_steps": 5, "learning_rate": 0.1}
    trainer = trainer_of(tmp_path, arguments)
    trainer.train()
    best = max(evaluations(trainer), key=lambda entry: entry["eval_vgp_accuracy"])
    checkpoint = Path(trainer.state.best_model_checkpoint)
    assert checkpoint.name == f"checkpoint-{best['step']}"
    assert_same(saved_weights(checkpoint), weights(trainer.model), 0)


def test_a_killed_checkpoint_leaves_nothing_in_the_new_one(tmp_path):
    stale = tmp_path / "checkpoint-2/rng_state_1.pth"
    stale.parent.mkdir()
    stale.write_bytes(b"of a run of two processes")
    trainer_of(tmp_path, {"max_steps": 2, "save_steps": 2}).train()
    assert not stale.exists()
    assert is_complete(stale.parent)


def test_a_checkpoint_that_was_being_deleted_is_deleted(tmp_path):
    """The run is killed after its last save, while it deletes the checkpoint before."""
    arguments = {"max_steps": 2, "save_total_limit": 1}
    trainer_of(tmp_path, arguments).train()
    (tmp_path / "checkpoint-1").mkdir()
    trainer_of(tmp_path, arguments).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]

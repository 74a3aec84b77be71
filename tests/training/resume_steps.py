# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Trainings that are continued from their checkpoints; `main` runs in each of two processes."""

import sys
from pathlib import Path

from accelerate import PartialState

from grounded_attention.training.loop.checkpoint import step_of
from grounded_attention.training.loop.data import add_lengths
from grounded_attention.training.loop.trainer import GroundingTrainingArguments
from grounded_attention.utils.processes import leave_group
from tests.helpers.tiny_trainer import assert_same, make_trainer, weights
from tests.helpers.tiny_vgp import tiny_model, tiny_rows, tiny_table

TIME = ("_runtime", "_per_second")
# 16 rows: 4 steps an epoch with batches of 4.
PLAIN = {"per_device_train_batch_size": 4, "max_steps": 7, "save_strategy": "steps", "save_steps": 1}
TWO_PROCESSES = {
    "loader workers": {"per_device_train_batch_size": 2, "dataloader_num_workers": 2, "max_steps": 5},
    "logs": {"per_device_train_batch_size": 2, "logging_steps": 3, "save_steps": 2, "save_total_limit": 2},
}


def history(trainer):
    """The logs without times."""
    return [{k: v for k, v in entry.items() if not k.endswith(TIME)} for entry in trainer.state.log_history]


def assert_equal_bits(one, other):
    assert_same(weights(one.model), weights(other.model), 0)
    assert history(other) == history(one)


def trainer_of(directory, arguments):
    rows = add_lengths(tiny_rows(tiny_table(8)), None) if "train_sampling_strategy" in arguments else None
    model = None
    if "learning_rate_mapping" in arguments:
        model = tiny_model(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
        arguments = {"arguments_class": GroundingTrainingArguments, **arguments}
    return make_trainer(directory, model=model, rows=rows, **{**PLAIN, "length_column_name": "length", **arguments})


def train_and_continue(directory, arguments, kept):
    """A run without a stop, and one continued from each of the checkpoints with these numbers."""
    straight = trainer_of(directory / "straight", arguments)
    straight.train()
    checkpoints = sorted((directory / "straight").glob("checkpoint-*"), key=step_of)
    for checkpoint in sorted({checkpoints[number] for number in kept}):
        resumed = trainer_of(directory / checkpoint.name, arguments)
        resumed.train(resume_from_checkpoint=str(checkpoint))
        yield straight, resumed


def main(output):
    """Fails if a case of two processes is not equal."""
    for name, arguments in TWO_PROCESSES.items():
        for straight, resumed in train_and_continue(output / name.replace(" ", "_"), arguments, kept=(0, -1)):
            assert_equal_bits(straight, resumed)
    state = PartialState()
    state.wait_for_everyone()
    (output / f"equal-{state.process_index}-of-{state.num_processes}").touch()
    leave_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

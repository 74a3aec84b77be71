# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Trainings of the tiny model that are stopped and continued with other processes; a test or two processes run it.

The arguments are OUTPUT and ONE, a folder in which one process has trained.
"""

import json
import os
import sys
from pathlib import Path

from safetensors.torch import save_file

from grounded_attention.modeling.finite_numbers import NotFiniteError
from grounded_attention.training.loop.checkpoint import prepare_resume
from grounded_attention.training.loop.trainer import GroundingTrainingArguments
from grounded_attention.utils.processes import leave_group
from tests.helpers.tiny_trainer import logged, make_trainer
from tests.training.not_finite import spoil_gradient, spoil_loss

# with 8 rows in a step, an epoch has 2 steps
STEPS = 6
STOP = 3
ALONE = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
TOGETHER = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}


def elastic_trainer(folder, **arguments):
    fixed = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": STOP, "optim": "adamw_torch"}
    fixed |= {"learning_rate": 1e-3, "lr_scheduler_type": "linear", "max_grad_norm": 1.0}
    return make_trainer(folder, "direct", arguments_class=GroundingTrainingArguments, **{**fixed, **arguments})


def train(folder, resume=None, spoil=None, **arguments):
    """Trains, and writes the losses and the weights to the folder."""
    trainer = elastic_trainer(folder, **arguments)
    if resume is not None:
        prepare_resume(trainer, resume)
    if spoil is not None:
        spoil(trainer)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    weights = {}
    for name, weight in trainer.model.state_dict().items():
        whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        weights[name] = whole.detach().clone()
    if trainer.is_world_process_zero():
        save_file(weights, folder / "after.safetensors")
        losses = []
        for entry in logged(trainer):
            losses.append({key: value for key, value in entry.items() if key.startswith("loss")})
        (folder / "after.json").write_text(json.dumps({"losses": losses}))
    trainer.accelerator.wait_for_everyone()


def main(output, one):
    """What two processes do."""
    train(output / "two", **TOGETHER)
    train(output / "continued", one / f"checkpoint-{STOP}", **ALONE)
    for name, spoil in (("loss", spoil_loss), ("gradient", lambda trainer: spoil_gradient(trainer, float("inf")))):
        try:
            train(output / name, spoil=spoil, **TOGETHER)
        except NotFiniteError as error:  # in both processes, or one would wait for the other
            (output / f"{name}_{os.environ['RANK']}.txt").write_text(str(error))
    train(output / "sharded", fsdp=True, **TOGETHER)
    train(output / "sharded_continued", output / "sharded" / f"checkpoint-{STOP}", fsdp=True, **TOGETHER)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
    leave_group()

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Continues a training from a checkpoint: with other processes, other versions or other code."""

import sys
from pathlib import Path

from .environment import check_sharding, differences, environment, read_environment, share_batch
from .trainer import GroundingTrainer


def prepare_resume(trainer: GroundingTrainer, checkpoint: Path) -> None:
    """
    Makes the steps of a training those of the checkpoint, and reports what differs.

    With another number of processes, each step has the same rows: the batch of one process and the accumulation are
    changed. Draws of dropout depend on the process, so they differ.
    """
    before = read_environment(checkpoint)
    if before is None:
        return
    arguments, lines = trainer.args, []
    now = environment(arguments, trainer.is_fsdp_enabled)
    check_sharding(before, now["sharded"], checkpoint)
    found = differences(before, now)
    if found:
        lines.append(f"was written with other software, so figures may differ: {'; '.join(found)}")
    if before["processes"] != now["processes"]:
        batch, accumulation = share_batch(before, now["processes"], checkpoint)
        arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps = batch, accumulation
        trainer._train_batch_size = arguments.train_batch_size  # the Trainer keeps a copy
        lines.append(_describe_sharing(trainer, before["processes"]))
    for line in lines if trainer.is_world_process_zero() else ():
        print(f"warning: {checkpoint} {line}", file=sys.stderr, flush=True)


def _describe_sharing(trainer: GroundingTrainer, before: int) -> str:
    arguments = trainer.args
    batch, accumulation, processes = (
        arguments.per_device_train_batch_size,
        arguments.gradient_accumulation_steps,
        arguments.world_size,
    )
    rest = len(trainer.train_dataset) % (batch * accumulation * processes)  # type: ignore[arg-type]
    last = f"; the last step of an epoch, with {rest} rows, is filled up with rows of its beginning" if rest else ""
    return (
        f"was written by {before} process{'es' * (before > 1)}, now {processes}: to keep the rows of a step, each "
        f"process has batches of {batch} and accumulates {accumulation}; draws of dropout differ{last}"
    )

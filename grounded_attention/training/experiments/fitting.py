# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Trains with a Trainer, saves the model, and seals its folder."""

import pickle
from dataclasses import dataclass
from pathlib import Path

from grounded_attention.training.loop.checkpoint import last_complete_checkpoint, seal, step_of
from grounded_attention.training.loop.resume import prepare_resume
from grounded_attention.training.loop.trainer import GroundingTrainer
from grounded_attention.training.recipes.recipe import RecipeError
from grounded_attention.utils.whole_files import write_json


@dataclass(frozen=True)
class TrainingTime:
    """
    The duration of a training.
    """

    seconds: float
    after_step: int


def fit(trainer: GroundingTrainer, resume: bool, directory: Path) -> TrainingTime:
    """Trains and saves the model; with `resume` it continues from the last complete checkpoint."""
    checkpoint = last_complete_checkpoint(directory) if resume else None
    if checkpoint is not None:
        prepare_resume(trainer, checkpoint)
    try:
        outcome = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except pickle.UnpicklingError as error:
        raise RecipeError(
            f"{checkpoint}: a saved state (optimizer.pt, scheduler.pt or rng_state.pth) is damaged or would run code, "
            "so it is not read; delete this folder to continue from the checkpoint before it"
        ) from error
    if trainer.hub is not None:
        trainer.hub.wait()  # it reads from the directory that is sealed next
    trainer.save_model(str(directory))
    if trainer.is_world_process_zero():
        write_json(directory / "history.json", trainer.state.log_history)
    return TrainingTime(outcome.metrics["train_runtime"], step_of(checkpoint) if checkpoint else 0)


def seal_folder(trainer: GroundingTrainer, directory: Path) -> None:
    """Seals the folder of a saved model, once, when all processes have arrived."""
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        seal(directory)
    trainer.accelerator.wait_for_everyone()

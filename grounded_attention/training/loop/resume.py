# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Continues a training from a checkpoint, also with another number of processes.

A checkpoint has what transformers leaves out: the rows of a step, and the losses that were not logged yet, of each
process. All its weights are taken, or none: transformers saves many vision-language models under
the names of older versions, and its Trainer reads such a checkpoint by the names of today and leaves every weight as
it is, with a warning.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from grounded_attention.training.recipes.recipe import RecipeError
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.whole_files import make_folder, write_json

STEP = "step.json"  # in a checkpoint: how many rows a step has, and whether weights are sharded


def prepare_resume(trainer: Any, checkpoint: Path) -> None:
    """Keeps the rows of a step with another number of processes."""
    before = read_json(checkpoint / STEP)
    torch.set_num_threads(before["threads"])
    if before["sharded"] != trainer.is_fsdp_enabled:
        raise RecipeError(
            f"{checkpoint} was written {'with' if before['sharded'] else 'without'} sharding (training.fsdp) and can "
            "only be continued so: give the number of processes that it had, or the checkpoint as model.source of a "
            "new run"
        )
    together = trainer.args.world_size * trainer.args.per_device_train_batch_size
    if before["rows"] % together:
        raise RecipeError(
            f"{checkpoint}: a step has {before['rows']} rows, which these processes with {together} rows at once "
            "cannot share: continue with another number of processes"
        )
    trainer.args.gradient_accumulation_steps = before["rows"] // together


def save_step(trainer: Any, checkpoint: Path) -> None:
    """Writes what a continued training must keep."""
    together = trainer.args.world_size * trainer.args.per_device_train_batch_size
    rows = together * trainer.args.gradient_accumulation_steps
    content = {"rows": rows, "sharded": trainer.is_fsdp_enabled, "threads": torch.get_num_threads()}
    write_json(checkpoint / STEP, content)


FILE = "unlogged_losses_{rank}.pt"  # in a checkpoint: the sums of losses of a process since the last log
SUMS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_logged", "_logged_since")


def save_unlogged(trainer: Any, checkpoint: Path) -> None:
    """Writes the sums of this process into a checkpoint."""
    make_folder(checkpoint)  # with `save_only_model` the first process alone has made it
    sums = {name: getattr(trainer, name) for name in SUMS}
    torch.save(sums, checkpoint / FILE.format(rank=trainer.accelerator.process_index))


def load_unlogged(trainer: Any, checkpoint: Path) -> None:
    """Takes the sums of this process from a checkpoint that as many processes wrote."""
    path = checkpoint / FILE.format(rank=trainer.accelerator.process_index)
    if len([*checkpoint.glob(FILE.format(rank="*"))]) == trainer.accelerator.num_processes:
        for name, value in torch.load(path, map_location=trainer.args.device.type, weights_only=True).items():
            setattr(trainer, name, value)


class SavedWeights:
    """Makes a Trainer that resumes, or loads its best model at the end, take the weights that were saved."""

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if not self._take(Path(resume_from_checkpoint)):
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]

    def _load_best_model(self) -> None:
        if not self._take(Path(self.state.best_model_checkpoint)):  # type: ignore[attr-defined]
            super()._load_best_model()  # type: ignore[misc]

    def _take(self, checkpoint: Path) -> bool:
        """Takes the weights of a whole model. Those of adapters are compared; PEFT, FSDP or the Trainer takes them."""
        trainer: Any = self
        model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
        self._checkpoint = checkpoint
        if trainer.is_fsdp_enabled:
            return False
        if hasattr(model, "active_adapters") and hasattr(model, "peft_config"):
            from peft import get_peft_model_state_dict, load_peft_weights

            name = model.active_adapters[0]
            folder = self._checkpoint if name == "default" else self._checkpoint / name
            saved = load_peft_weights(str(folder), "cpu")
            own = get_peft_model_state_dict(model, adapter_name=name)
            other = {key for key in own.keys() & saved.keys() if own[key].shape != saved[key].shape}
            self._refuse(own.keys() - saved.keys(), saved.keys() - own.keys(), other)
        if not isinstance(model, PreTrainedModel):
            return False
        types = {weight.dtype for weight in model.parameters()}
        loading = cast(Any, type(model)).from_pretrained
        loaded, report = loading(
            checkpoint,
            config=model.config,
            dtype=torch.float64 if torch.float64 in types else torch.float32,  # holds the values of all types
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
        self._refuse(
            report["missing_keys"], report["unexpected_keys"], {each[0] for each in report["mismatched_keys"]}
        )
        model.load_state_dict(loaded.state_dict())
        return True

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Called by the Trainer for models that are neither of transformers nor of PEFT."""
        self._refuse(load_result.missing_keys, load_result.unexpected_keys, ())

    def _refuse(self, missing: Collection[str], unknown: Collection[str], other: Collection[str]) -> None:
        kinds = {"lacks": missing, "has, but the model has not,": unknown, "has in another shape": other}
        lines = [f"{verb} {min(keys)} ({len(keys)} in all)" for verb, keys in kinds.items() if keys]
        if lines:
            raise RecipeError(
                f"{self._checkpoint}: the checkpoint {'; it '.join(lines)}: it is of another model than the one "
                "that is trained; continue with the model that was saved"
            )

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Complete checkpoints: a manifest, written last, marks a complete one; training resumes only from these.

It resumes also with another number of processes. A checkpoint has what transformers leaves out: the rows of a step,
and the losses that were not logged yet, of each process. All its weights are taken, or none: transformers saves many
vision-language models under the names of older versions, and its Trainer reads such a checkpoint by the names of
today and leaves every weight as it is, with a warning.
"""

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel
from transformers.trainer import OPTIMIZER_NAME_BIN

from grounded_attention.training.recipes.recipe import RecipeError
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.safe_paths import path_below
from grounded_attention.utils.whole_files import DRAFT, make_folder, write_json, write_text

MANIFEST = "checkpoint_manifest.json"
# Users and `grounded-attention heads --card` may edit the card; the checkpoint stays complete.
CARD = "README.md"
# safetensors writes weights under such a name first.
TORN = ".tmp??????"


def seal(directory: str | Path) -> None:
    """Marks a checkpoint as complete: writes the size and SHA-256 of every file except the card, durably. Torn weights
    of a process that was killed are deleted."""
    directory = Path(directory)
    for path in directory.rglob(TORN):
        if path.is_file():
            path.unlink()
    paths = _files(directory)
    with ThreadPoolExecutor() as threads:  # digests are half of the work of saving
        files = {}
        for p, about in zip(paths, threads.map(_describe, paths), strict=True):
            files[str(p.relative_to(directory))] = about
    write_text(directory / MANIFEST, json.dumps(files, indent=1, sort_keys=True), durable=True)


def is_complete(directory: str | Path) -> bool:
    """Whether every file of the manifest exists and is unchanged; the card may change."""
    directory = Path(directory)
    files = _manifest(directory)
    if not files:  # a manifest of ours names files
        return False
    try:
        paths = {path_below(directory, name): expected for name, expected in files.items()}
    except ValueError:  # no manifest of ours names files elsewhere
        return False
    return all(path.is_file() and _describe(path) == expected for path, expected in paths.items())


def refuse_changed(directory: str | Path, name: str = "") -> None:
    """Raises an error for a checkpoint of ours that is not complete; `name` is what the user calls it."""
    if Path(directory, MANIFEST).is_file() and not is_complete(directory):
        raise ValueError(f"{name or directory}: the checkpoint is incomplete or was changed; copy or train it again")


def _manifest(directory: Path) -> Fields | None:
    try:
        files = read_json(directory / MANIFEST)
    except (OSError, ValueError):
        return None
    if isinstance(files, dict):
        return files
    return None


def step_of(checkpoint: Path) -> int:
    """The step of a folder `checkpoint-<step>`."""
    return int(checkpoint.name.rpartition("-")[2])


def last_complete_checkpoint(output_dir: str | Path) -> Path | None:
    """The complete `checkpoint-<step>` with the highest step; `None` if there is none."""
    return next((path for path in reversed(_checkpoints(Path(output_dir))) if is_complete(path)), None)


def _checkpoints(output_dir: Path) -> list[Path]:
    """The folders `checkpoint-<step>`, the highest step last."""
    folders = [path for path in output_dir.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(folders, key=step_of)


def rotate(output_dir: Path, limit: int | None, step: int, best: str | None) -> None:
    """Deletes the oldest checkpoints. The order is that of the steps: a clock that is set back changes nothing."""
    checkpoints = sorted(_checkpoints(output_dir), key=lambda path: (step_of(path) <= step, step_of(path)))
    kept = {f"checkpoint-{step}", Path(best).name if best else ""}
    extra = [path for path in checkpoints if path.name not in kept]
    for path in extra[: max(0, len(checkpoints) - limit)] if limit else ():
        # If this fails twice, training goes on with a warning: nothing reads what is left.
        try:
            shutil.rmtree(path)
        except OSError:
            shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            print(f"warning: {path}: this old checkpoint could not be deleted; delete it by hand", file=sys.stderr)


def snapshot(directory: Path, target: Path) -> Path:
    """Copies a checkpoint with hard links where the file system allows them."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(directory, target, copy_function=_link)
    return target


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _files(directory: Path) -> list[Path]:
    """All files except the card, the manifest, drafts of a killed process, and checkpoints inside the folder."""
    files = (p for p in directory.rglob("*") if p.is_file() and not p.name.startswith((MANIFEST, CARD)))
    files = (p for p in files if p.suffix != DRAFT)
    return sorted(p for p in files if not p.relative_to(directory).parts[0].startswith("checkpoint-"))


def _describe(path: Path) -> dict[str, int | str]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    return {"size": path.stat().st_size, "sha256": digest}


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

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Of sharded weights torch expects states of all that learn, also of layers that no gradient reaches, such as
        the last ones of LLaVA's vision tower. These have none, and are frozen.
        """
        states = Path(checkpoint or "", OPTIMIZER_NAME_BIN)
        if getattr(self, "is_fsdp_enabled", False) and states.is_file():
            learned = torch.load(states, map_location="cpu", mmap=True, weights_only=True)["state"]
            for name, weight in self.model.named_parameters():  # type: ignore[attr-defined]
                weight.requires_grad_(weight.requires_grad and name in learned)
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]

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

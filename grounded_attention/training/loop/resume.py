# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Continues a training from a checkpoint: with other processes, other versions or other code.

A checkpoint has what transformers leaves out: the versions and the code that wrote it, and the losses that were not
logged yet, of each process. All its weights are taken, or none: transformers saves many vision-language models under
the names of older versions, and its Trainer reads such a checkpoint by the names of today and leaves every weight as
it is, with a warning.
"""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel, TrainingArguments

from grounded_attention.training.recipes.recipe import RecipeError
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.project import PACKAGE
from grounded_attention.utils.whole_files import make_folder, write_json


def prepare_resume(trainer: Any, checkpoint: Path) -> None:
    """Makes the steps of a training those of the checkpoint, and reports what differs."""
    before = read_environment(checkpoint)
    arguments, lines = trainer.args, []
    torch.set_num_threads(before.get("threads") or torch.get_num_threads())
    now = environment(arguments, trainer.is_fsdp_enabled)
    check_sharding(before, now["sharded"], checkpoint)
    changed = differences(before, now)
    if changed:
        lines.append(f"was written with other software, so numbers may differ: {'; '.join(changed)}")
    if before["processes"] != now["processes"]:
        batch, accumulation = share_batch(before, now["processes"], checkpoint)
        arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps = batch, accumulation
        trainer._train_batch_size = arguments.train_batch_size  # the Trainer keeps a copy
        lines.append(_describe_sharing(trainer, before["processes"]))
    for line in lines if trainer.is_world_process_zero() else ():
        print(f"warning: {checkpoint} {line}", file=sys.stderr, flush=True)


def _describe_sharing(trainer: Any, before: int) -> str:
    arguments = trainer.args
    batch, accumulation, processes = (
        arguments.per_device_train_batch_size,
        arguments.gradient_accumulation_steps,
        arguments.world_size,
    )
    rest = len(trainer.train_dataset) % (batch * accumulation * processes)
    last = f"; the last step of an epoch, with {rest} rows, is filled up with rows of its beginning" if rest else ""
    return (
        f"was written by {before} process{'es' * (before > 1)}, now {processes}: to keep the rows of a step, each "
        f"process has batches of {batch} and accumulates {accumulation}; draws of dropout differ{last}"
    )


ENVIRONMENT = "environment.json"
PACKAGES = ("grounded-attention", "torch", "transformers", "accelerate", "numpy")
MAX_NAMED = 5  # files in a message


def environment(arguments: TrainingArguments, sharded: bool) -> dict[str, Any]:
    """Describes this training."""
    return {
        "processes": arguments.world_size,
        "batch": arguments.per_device_train_batch_size,
        "accumulation": arguments.gradient_accumulation_steps,
        "sharded": sharded,
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "code": code_digests(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a copy of the files that was never installed
        return "unknown"


@cache
def code_digests() -> dict[str, str]:
    """File of this package -> the first 12 digits of its SHA-256; the same for a clone and an installed copy."""
    digests = {}
    for folder, _, names in os.walk(PACKAGE, followlinks=True):
        for path in (Path(folder, name) for name in names if name.endswith(".py")):
            digests[path.relative_to(PACKAGE).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return dict(sorted(digests.items()))


def write_environment(checkpoint: Path, environment: dict[str, Any]) -> None:
    """Writes the description into a checkpoint."""
    write_json(checkpoint / ENVIRONMENT, environment)


def read_environment(checkpoint: Path) -> dict[str, Any]:
    """The description in a checkpoint."""
    return cast(dict[str, Any], read_json(checkpoint / ENVIRONMENT))


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs in versions and code: "transformers 5.4.0 -> 5.5.0"."""
    versions = {name: (before["versions"].get(name, "none"), new) for name, new in now["versions"].items()}
    changes = [f"{name} {old} -> {new}" for name, (old, new) in versions.items() if old != new]
    files = before["code"].keys() | now["code"].keys()
    changed = sorted(name for name in files if before["code"].get(name) != now["code"].get(name))
    if changed:
        more = f" and {len(changed) - MAX_NAMED} more" if len(changed) > MAX_NAMED else ""
        named = (f"{n} {before['code'].get(n, 'none')} -> {now['code'].get(n, 'none')}" for n in changed[:MAX_NAMED])
        changes.append(f"code: {', '.join(named)}{more}")
    return changes


def share_batch(before: dict[str, Any], processes: int, checkpoint: Path) -> tuple[int, int]:
    """The batch of one process and the accumulation with which a step has the same rows as before."""
    together = before["processes"] * before["batch"] * before["accumulation"]
    if together % processes:
        fitting = [str(n) for n in range(1, 2 * before["processes"] + 1) if together % n == 0]
        raise RecipeError(
            f"{checkpoint}: a step has {together} rows, which {processes} processes cannot share equally: continue "
            f"with {', '.join(fitting)} processes"
        )
    each = together // processes
    batch = max(size for size in range(1, min(before["batch"], each) + 1) if each % size == 0)
    return batch, each // batch


def check_sharding(before: dict[str, Any], sharded: bool, checkpoint: Path) -> None:
    """Checks that the state of the optimizer can be read."""
    if before["sharded"] != sharded:
        was, now = ("with", "without") if before["sharded"] else ("without", "with")
        how = "continue with at least 2 processes" if before["sharded"] else "continue with 1 process"
        raise RecipeError(
            f"{checkpoint} was written {was} sharding (training.fsdp) and cannot be continued {now} it: {how}, or "
            "give the checkpoint as model.source of a new run"
        )


FILE = "unlogged_losses_{rank}.safetensors"
TOTAL = "loss"


@dataclass(frozen=True)
class UnloggedLosses:
    """Sums of losses of one process."""

    loss: Tensor
    logged: float
    last_step: int
    parts: dict[str, Tensor] = field(default_factory=dict)
    taken: int = 0
    skipped: int = 0

    def save(self, checkpoint: Path, rank: int) -> None:
        """Writes the sums of a process into a checkpoint."""
        numbers = json.dumps([self.logged, self.last_step, self.taken, self.skipped, list(self.parts)])
        tensors = {TOTAL: self.loss, **{f"part {name}": value for name, value in self.parts.items()}}
        tensors = {name: value.detach().cpu().clone() for name, value in tensors.items()}
        make_folder(checkpoint)  # with `save_only_model` the first process alone has made it
        save_file(tensors, checkpoint / FILE.format(rank=rank), metadata={"numbers": numbers})

    @classmethod
    def load(cls, checkpoint: Path, rank: int, processes: int) -> "UnloggedLosses | None":
        """Reads the sums of a process. With another number of processes than before, each gets an equal share."""
        paths = sorted(checkpoint.glob(FILE.format(rank="*")))
        if len(paths) == processes:
            return _read(checkpoint / FILE.format(rank=rank))
        if not paths:
            return None
        saved = [_read(path) for path in paths]
        loss = torch.stack([each.loss for each in saved]).mean()  # the mean over processes is logged, but this sum:
        parts = {n: torch.stack([each.parts[n] for each in saved]).sum() / processes for n in saved[0].parts}
        return cls(loss, saved[0].logged, saved[0].last_step, parts, saved[0].taken, saved[0].skipped)


def _read(path: Path) -> UnloggedLosses:
    with safe_open(path, "pt") as file:
        logged, last_step, taken, skipped, names = json.loads(file.metadata()["numbers"])
        parts = {name: file.get_tensor(f"part {name}") for name in names}
        return UnloggedLosses(file.get_tensor(TOTAL), logged, last_step, parts, taken, skipped)


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
            self._compare_adapter(model)
        if not isinstance(model, PreTrainedModel):
            return False
        types, loading = {weight.dtype for weight in model.parameters()}, cast(Any, type(model)).from_pretrained
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

    def _compare_adapter(self, model: Any) -> None:
        from peft import get_peft_model_state_dict, load_peft_weights

        name = model.active_adapters[0]
        folder = self._checkpoint if name == "default" else self._checkpoint / name
        saved, own = load_peft_weights(str(folder), "cpu"), get_peft_model_state_dict(model, adapter_name=name)
        other = {key for key in own.keys() & saved.keys() if own[key].shape != saved[key].shape}
        self._refuse(own.keys() - saved.keys(), saved.keys() - own.keys(), other)

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

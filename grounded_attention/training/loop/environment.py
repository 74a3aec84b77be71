# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a checkpoint was written with: processes, batch, versions and code; compared when a training continues."""

import hashlib
import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from grounded_attention.training.recipes.recipe import RecipeError
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.project import PACKAGE
from grounded_attention.utils.whole_files import write_json

ENVIRONMENT = "environment.json"
PACKAGES = ("grounded-attention", "torch", "transformers", "accelerate", "numpy")
MAX_NAMED = 5  # files in a message


def environment(arguments: TrainingArguments, sharded: bool) -> dict[str, Any]:
    """
    Describes this training.
    """
    return {
        "processes": arguments.world_size,
        "batch": arguments.per_device_train_batch_size,
        "accumulation": arguments.gradient_accumulation_steps,
        "sharded": sharded,
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
    found = {}
    for folder, _, names in os.walk(PACKAGE, followlinks=True):
        for path in (Path(folder, name) for name in names if name.endswith(".py")):
            found[path.relative_to(PACKAGE).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return dict(sorted(found.items()))


def write_environment(checkpoint: Path, found: dict[str, Any]) -> None:
    """Writes the description into a checkpoint."""
    write_json(checkpoint / ENVIRONMENT, found)


def read_environment(checkpoint: Path) -> dict[str, Any] | None:
    """The description in a checkpoint; `None` for a checkpoint of an earlier version, which has none."""
    path = checkpoint / ENVIRONMENT
    return read_json(path) if path.is_file() else None


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs in versions and code: "transformers 5.4.0 -> 5.5.0"."""
    versions = {name: (before["versions"].get(name, "none"), new) for name, new in now["versions"].items()}
    found = [f"{name} {old} -> {new}" for name, (old, new) in versions.items() if old != new]
    files = before["code"].keys() | now["code"].keys()
    changed = sorted(name for name in files if before["code"].get(name) != now["code"].get(name))
    if changed:
        more = f" and {len(changed) - MAX_NAMED} more" if len(changed) > MAX_NAMED else ""
        named = (f"{n} {before['code'].get(n, 'none')} -> {now['code'].get(n, 'none')}" for n in changed[:MAX_NAMED])
        found.append(f"code: {', '.join(named)}{more}")
    return found


def share_batch(before: dict[str, Any], processes: int, checkpoint: Path) -> tuple[int, int]:
    """
    The batch of one process and the accumulation with which a step has the same rows as before.
    """
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
    """
    Checks that the state of the optimizer can be read.
    """
    if before["sharded"] != sharded:
        was, now = ("with", "without") if before["sharded"] else ("without", "with")
        how = "continue with at least 2 processes" if before["sharded"] else "continue with 1 process"
        raise RecipeError(
            f"{checkpoint} was written {was} sharding (training.fsdp) and cannot be continued {now} it: {how}, or "
            "give the checkpoint as model.source of a new run"
        )

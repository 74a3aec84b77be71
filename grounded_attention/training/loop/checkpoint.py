# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Complete checkpoints: a manifest, written last, marks a complete one; training resumes only from these."""

import hashlib
import json
import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.safe_paths import path_below
from grounded_attention.utils.whole_files import DRAFT, write_text

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

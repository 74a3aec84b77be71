# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints that survive: complete ones carry a manifest, written last; only complete ones are resumed from."""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

from grounded_attention.utils.whole_files import DRAFT, write_text

MANIFEST = "checkpoint_manifest.json"
# Text for people, who may edit it, as grounded-attention audit --card does: the checkpoint is as complete as before.
CARD = "README.md"


def seal(directory: str | Path) -> None:
    """Declares a checkpoint complete: writes the size and SHA-256 of each of its files but the card, durably."""
    directory = Path(directory)
    files = {str(p.relative_to(directory)): _describe(p) for p in _files(directory)}
    write_text(directory / MANIFEST, json.dumps(files, indent=1, sort_keys=True), durable=True)


def is_complete(directory: str | Path) -> bool:
    """Whether every file the manifest names is there, unchanged; the card may change."""
    directory = Path(directory)
    try:
        files = json.loads((directory / MANIFEST).read_text())
    except (OSError, ValueError):
        return False
    files.pop(CARD, None)  # manifests of before name it
    return all((directory / name).is_file() and _describe(directory / name) == d for name, d in files.items())


def step_of(checkpoint: Path) -> int:
    """The step of a folder `checkpoint-<step>`."""
    return int(checkpoint.name.rpartition("-")[2])


def last_complete_checkpoint(output_dir: str | Path) -> Path | None:
    """The complete `checkpoint-<step>` with the highest step, or None."""
    output_dir = Path(output_dir)
    if not output_dir.is_dir():
        return None
    steps = [(int(m[1]), p) for p in output_dir.iterdir() if (m := re.fullmatch(r"checkpoint-(\d+)", p.name))]
    return next((path for _, path in sorted(steps, reverse=True) if is_complete(path)), None)


def snapshot(directory: Path, target: Path) -> Path:
    """A second name for every file of a checkpoint, without a second copy where the file system allows it.

    The files outlive the deletion of the checkpoint; `target` is replaced.
    """
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(directory, target, copy_function=_link)
    return target


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _files(directory: Path) -> list[Path]:
    """All but the card, the manifest, drafts that a killed process left, and the checkpoints below with their own."""
    found = (p for p in directory.rglob("*") if p.is_file() and not p.name.startswith((MANIFEST, CARD)))
    found = (p for p in found if p.suffix != DRAFT)
    return sorted(p for p in found if not p.relative_to(directory).parts[0].startswith("checkpoint-"))


def _describe(path: Path) -> dict[str, int | str]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    return {"size": path.stat().st_size, "sha256": digest}

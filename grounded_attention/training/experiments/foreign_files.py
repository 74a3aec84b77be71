# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Files in the folder of a method that no run wrote; `overwrite=true` deletes none of them."""

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from grounded_attention.training.loop.checkpoint import CARD, MANIFEST, TORN, manifest_names
from grounded_attention.training.publish.card_place import EVAL_RESULTS, FIGURE
from grounded_attention.training.publish.hub import SNAPSHOTS
from grounded_attention.utils.whole_files import DRAFT

# Written or changed after the manifest, or left by a process that was killed.
LATER = (CARD, MANIFEST, FIGURE, EVAL_RESULTS, "heads.json", TORN, f"*{DRAFT}", f"{SNAPSHOTS}/*")
# What a run writes before the manifest, so that a stopped run may have any of it.
BEFORE = (
    *("*.json", "*.safetensors", "*.py", "*.jinja", "*.model", "vocab.txt", "merges.txt"),
    *("*.pt", "*.pth", "*.bin", "*.distcp", "*.metadata", "*.npz", "emissions.csv", "runs/*"),
)


def foreign_files(folder: Path) -> list[Path]:
    """
    Files below the folder of a method, or of one of its checkpoints, that no run wrote.
    """
    return sorted(_foreign(folder))


def _foreign(folder: Path) -> Iterator[Path]:
    checkpoints = [path for path in folder.glob("checkpoint-*") if path.is_dir()]
    for checkpoint in checkpoints:
        yield from _foreign(checkpoint)
    named = manifest_names(folder)
    for path in folder.rglob("*"):
        inside = path.relative_to(folder)
        if path.is_dir() or folder / inside.parts[0] in checkpoints:
            continue
        name = inside.as_posix()
        known = name in named if named else any(fnmatch(name, pattern) for pattern in BEFORE)
        if not known and not any(fnmatch(name, pattern) for pattern in LATER):
            yield path

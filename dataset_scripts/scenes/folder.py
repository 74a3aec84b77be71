# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The folder of drawn scenes: whose scenes it holds, and files that are never taken for finished too early."""

import json
import shutil
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.utils.whole_files import write_text

MANIFEST, PARTIAL = "scenes.json", "scenes.partial.json"
FOLDERS = (
    "flickr30k_entities",
    "flickr30k-images",
    "vgp",
    "parses",
    "coco",
    "refcoco+",
    "detections",
    "vqa",
    "nlvr2",
    "regions",
    "regions_gt",
)


def finished(root: Path, identity: dict[str, int], force: bool) -> dict[str, Any] | None:
    """The manifest of the wanted scenes if they are there.

    Raises:
        DataError: Something else is there that must not be replaced.
    """
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return None
    marker = next((root / name for name in (MANIFEST, PARTIAL) if (root / name).is_file()), None)
    if marker is None:
        hint = "name a new or empty folder"
        raise DataError("the output folder holds other files, which are never replaced", file=root, hint=hint)
    try:
        there = json.loads(marker.read_text(encoding="utf-8"))
        same = {name: there.get(name) for name in identity} == identity
    except (ValueError, AttributeError):
        there, same = marker.name + " that is not readable", False
    if not same and not force:
        found = {name: there.get(name) for name in identity} if isinstance(there, dict) else there
        hint = "name another folder, or replace them with --force"
        raise DataError(
            "the output folder holds other scenes", file=root, found=found, expected=f"{identity}", hint=hint
        )
    return there if same and marker.name == MANIFEST else None


def begin(root: Path, identity: dict[str, int]) -> None:
    """Marks the folder as half-written and removes what an earlier run left in it."""
    root.mkdir(parents=True, exist_ok=True)
    write_text(root / PARTIAL, json.dumps(identity) + "\n")
    (root / MANIFEST).unlink(missing_ok=True)
    for name in FOLDERS:
        if (root / name).exists():
            shutil.rmtree(root / name)
    for name in ("vocab.txt", "corpus.txt"):
        (root / name).unlink(missing_ok=True)


def finish(root: Path, manifest: dict[str, Any]) -> None:
    """Marks the folder as whole."""
    write_text(root / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    (root / PARTIAL).unlink(missing_ok=True)

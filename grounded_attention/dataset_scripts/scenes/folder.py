# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The folder of drawn scenes: a check of its content, and markers that distinguish complete from incomplete files."""

import json
import shutil
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.locks import LOCK
from grounded_attention.utils.safe_paths import refuse_links
from grounded_attention.utils.whole_files import DRAFT, write_text

MANIFEST, PARTIAL = "scenes.json", "scenes.partial.json"
# Whether combinations are held out; files without it are those of scenes where none are.
HELD_OUT = "held_out"
FOLDERS = (
    "flickr30k_entities",
    "flickr30k-images",
    "vgp",
    "parses",
    "coco",
    "refcoco+",
    "detections",
    "vqa",
    "gqa",
    "lxmert",
    "llava",
    "nlvr2",
    "regions",
    "regions_gt",
)


def finished_manifest(root: Path, identity: dict[str, Any], force: bool) -> dict[str, Any] | None:
    """Returns the manifest of the requested scenes, or None if the folder does not hold them completely."""
    if not root.exists() or (root.is_dir() and all(_is_left_over(path) for path in root.iterdir())):
        return None
    marker = next((root / name for name in (MANIFEST, PARTIAL) if (root / name).is_file()), None)
    if marker is None:
        hint = "choose a new or empty folder"
        raise DataError("the output folder holds other files, which are never replaced", file=root, hint=hint)
    try:
        content: Any = {HELD_OUT: False, **read_json(marker)}
        same = {name: content.get(name) for name in identity} == identity
    except (ValueError, TypeError):
        content, same = "an unreadable " + marker.name, False
    if not same and not force:
        found = {name: content.get(name) for name in identity} if isinstance(content, dict) else content
        hint = "choose another folder, or replace them with --force"
        raise DataError(
            "the output folder holds other scenes", file=root, found=found, expected=f"{identity}", hint=hint
        )
    return described(content) if same and marker.name == MANIFEST else None


def _is_left_over(path: Path) -> bool:
    """Whether a file is a lock, or the draft of a marker, left by a process that was killed at its start."""
    return path.name == LOCK or (path.name.startswith((MANIFEST, PARTIAL)) and path.suffix == DRAFT)


def described(content: dict[str, Any]) -> dict[str, Any]:
    """Returns an identity or a manifest as it is written: without `held_out` if no combinations are."""
    return {name: value for name, value in content.items() if name != HELD_OUT or value}


def begin(root: Path, identity: dict[str, Any]) -> None:
    """Marks the folder as incomplete and removes the files of an earlier run."""
    root.mkdir(parents=True, exist_ok=True)
    refuse_links(root)
    write_text(root / PARTIAL, json.dumps(described(identity)) + "\n")
    (root / MANIFEST).unlink(missing_ok=True)
    for name in FOLDERS:
        if (root / name).exists():
            shutil.rmtree(root / name)
    for name in ("vocab.txt", "corpus.txt"):
        (root / name).unlink(missing_ok=True)


def finish(root: Path, manifest: dict[str, Any]) -> None:
    """Marks the folder as complete."""
    write_text(root / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    (root / PARTIAL).unlink(missing_ok=True)

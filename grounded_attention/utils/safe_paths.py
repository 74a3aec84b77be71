# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Paths that data name: they stay inside their folder, and output is never written through a symbolic link."""

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from .bounded_files import MEGABYTE, open_data, parse_json, read_json, unique_keys
from .named_types import AnyPath

MAX_JSON = 16 * MEGABYTE  # of a configuration, or a header of a safetensors file: 200,000 weights
WHOLE = ("I16", "I32", "I64", "U16", "U32", "U64", "BOOL")  # quantised weights are of 8 bits, or have other names


def path_below(folder: AnyPath, name: str) -> Path:
    """Joins a folder and a name from a data file."""
    parts = name.replace("\\", "/").split("/")
    if not name or "\0" in name or ".." in parts or not parts[0] or ":" in parts[0][1:2]:
        raise ValueError(
            f"{folder}: found the name {name[:120]!r} in the data, expected a path inside this folder: "
            "no '..', not absolute; correct the id or the file name"
        )
    return Path(folder, name)


def refuse_same_files(files: Mapping[str, AnyPath | None]) -> None:
    """Checks that the files of a command are different ones, so that none is written over another."""
    seen: dict[str, str] = {}
    for name, path in files.items():
        if path is None:
            continue
        earlier = seen.setdefault(os.path.realpath(path), name)
        if earlier != name:
            raise ValueError(f"{name} {path}: found the same file as {earlier}, expected a file of its own")


def check_weight_index(folder: AnyPath) -> None:
    """Checks that a checkpoint takes its weights from files of its own folder, that no key of its configuration or of
    its weights is there twice, and that no weight of a layer is declared as whole numbers.
    """
    config = Path(folder, "config.json")
    if config.is_file():
        read_json(config, MAX_JSON, object_pairs_hook=unique_keys)
    for path in Path(folder).glob("*.safetensors"):
        with open_data(path) as file:
            size = int.from_bytes(file.read(8), "little")
            if size > MAX_JSON:
                raise ValueError(f"{path}: a header of {size:,} bytes, expected at most {MAX_JSON:,}; copy it again")
            header = parse_json(file.read(size), path, object_pairs_hook=unique_keys)
        for name, entry in header.items() if isinstance(header, dict) else ():
            kind = entry.get("dtype") if isinstance(entry, dict) else None
            if name.endswith((".weight", ".bias")) and kind in WHOLE:
                raise ValueError(
                    f"{path}: the weight {name} is declared as {kind}, expected floats; copy the file again"
                )
    for path in Path(folder).glob("*.*.index.json"):  # also those of variants, and of pytorch_model.bin
        content = read_json(path)
        named = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
            raise ValueError(f"{path}: expected a weight_map of weights and files; copy the checkpoint again")
        for name in set(named.values()):
            path_below(folder, name)


def is_inside(path: Path, folders: Iterable[Path]) -> bool:
    """Whether a file is below one of these folders, after all links; those of the Hub's cache are in its `blobs`."""
    target = path.resolve()
    for root in (folder.resolve() for folder in folders):
        cached = root.parent.name == "snapshots" and target.parent == root.parent.parent / "blobs"
        if cached or target.is_relative_to(root):
            return True
    return False


def own_files(folder: Path) -> list[Path]:
    """All files below a folder that is pushed, sorted."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        if not is_inside(path, [folder]):
            raise ValueError(
                f"{path}: found a link to {path.resolve()}, expected files of this folder; remove the link"
            )
    return files


def refuse_links(folder: Path, written: Collection[str] | None = None) -> None:
    """Checks that no symbolic link leads output out of its folder; the folder itself may be one, and so may be what is
    not `written` to the folder, such as a link that the user put there.
    """
    root = os.path.realpath(folder)
    for parent, folders, files in os.walk(folder):
        if written is not None and Path(parent) == Path(folder):
            folders[:], files = ([name for name in names if name in written] for names in (folders, files))
        for name in (*folders, *files):
            path = Path(parent, name)
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
                raise ValueError(
                    f"{path}: a symbolic link to {os.readlink(path)}; output is not written through links: "
                    "remove it, or give another output folder"
                )

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pseudo-labels on the Hub: the same files as on a disk, in a data set repository."""

import os
from pathlib import Path

from huggingface_hub import snapshot_download

from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.files.manifests import sha256
from grounded_attention.dataset_scripts.hub.hub_errors import hub_errors
from grounded_attention.dataset_scripts.hub.verified import verify_once
from grounded_attention.dataset_scripts.regions.hub import is_on_hub, parse_place

from .files import MANIFEST, SHARDS, read_manifest


def local_folder(place: str | os.PathLike[str]) -> Path:
    """Returns the local folder of pseudo-labels; downloads those of the Hub first and checks their checksums once."""
    if not is_on_hub(place):
        return Path(place)
    name, revision = parse_place(str(place))
    retry = "run the command again; finished downloads are kept"
    with hub_errors("the download of the pseudo-labels", name, retry):
        folder = Path(
            snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=[MANIFEST, SHARDS])
        )
    if not (folder / MANIFEST).is_file():
        hint = "push some with `grounded-attention push`"
        raise MissingFileError("no pseudo-labels in this repository", where=name, expected=MANIFEST, hint=hint)
    verify_once(folder, name, "verified-pseudo-labels", lambda: check_files(folder))
    return folder


def check_files(folder: Path) -> None:
    """Compares every shard with its checksum."""
    for shard in read_manifest(folder)["shards"]:
        path = folder / shard["file"]
        if not path.is_file() or sha256(path) != shard["sha256"]:
            raise DataError("the file is missing or damaged: its checksum differs", file=path)

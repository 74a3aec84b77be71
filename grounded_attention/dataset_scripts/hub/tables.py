# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tables on the Hub: their places, and downloads, which are verified once."""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from huggingface_hub import constants, snapshot_download

from grounded_attention.dataset_scripts.files.errors import MissingFileError, placed, refuse_if
from grounded_attention.dataset_scripts.files.manifests import ManifestKind
from grounded_attention.utils.whole_files import make_folder

from .hub_errors import hub_errors

PREFIX = "hub://"
RETRY_HINT = "run the command again; finished downloads are kept"


def is_on_hub(place: str | os.PathLike[str]) -> bool:
    """Returns whether a place is a repository, `hub://ORG/NAME` or `hub://ORG/NAME@REVISION`."""
    return str(place).startswith(PREFIX)


def parse_place(place: str) -> tuple[str, str | None]:
    """Splits `hub://ORG/NAME[@REVISION]` into repository and revision."""
    name, _, revision = place.removeprefix(PREFIX).rstrip("/").partition("@")
    refuse_if(
        not is_on_hub(place) or name.count("/") != 1 or not all(name.split("/")),
        "not a place on the Hub",
        found=place,
        expected="hub://ORG/NAME or hub://ORG/NAME@REVISION",
    )
    return name, revision or None


def table_folder(
    place: str | os.PathLike[str], kind: ManifestKind, files: Sequence[str], verify: Callable[[Path], None]
) -> Path:
    """Returns the local folder of a table; downloads a table of the Hub first."""
    if not is_on_hub(place):
        return Path(place)
    (name, revision), noun = parse_place(str(place)), kind.what.removeprefix("a ")
    with hub_errors(f"the download of the {noun}", name, RETRY_HINT):
        allowed = [kind.file, *files]
        folder = Path(snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=allowed))
    if not (folder / kind.file).is_file():
        hint = "push it with `grounded-attention push`"
        raise MissingFileError(f"no {noun} in this repository", where=name, expected=kind.file, hint=hint)
    _verify_once(folder, name, kind.file, verify)
    return folder


def _verify_once(folder: Path, name: str, kind: str, verify: Callable[[Path], None]) -> None:
    """Verifies a download unless a mark in the cache of the Hub says that the same files were verified before."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    state = "\n".join(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files)
    key = hashlib.sha256(state.encode()).hexdigest()
    mark = Path(constants.HF_HOME) / "grounded-attention" / "verified" / kind / key
    if mark.exists():
        return
    hint = f"delete {folder.parents[1]} and download again; if the error stays, the pushed table is damaged"
    with placed(where=name, hint=hint):
        verify(folder)
    make_folder(mark.parent)
    mark.touch()

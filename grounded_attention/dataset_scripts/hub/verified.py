# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Downloads are verified once: a mark in the cache of the Hub remembers the files that were verified."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import constants

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.utils.whole_files import make_folder


def verify_once(folder: Path, name: str, kind: str, verify: Callable[[], None]) -> None:
    """Verifies a download unless the same files were verified before."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    state = "\n".join(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files)
    key = hashlib.sha256(state.encode()).hexdigest()
    mark = Path(constants.HF_HOME) / "grounded-attention" / kind / key
    if mark.exists():
        return
    try:
        verify()
    except DataError as error:
        hint = f"delete {folder.parents[1]} and download again; if the error stays, the pushed table is damaged"
        raise DataError(str(error), where=name, hint=hint) from error
    make_folder(mark.parent)
    mark.touch()

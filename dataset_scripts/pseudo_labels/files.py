# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Files of a folder of pseudo-labels: their names, the manifest, checksums."""

from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.files.manifests import ManifestKind

MANIFEST = "pseudo_labels.json"
PARTIAL = "pseudo_labels.partial.json"
PARTS = "parts"
SHARDS = "pseudo_labels-*.parquet"
HINT = "make them with `grounded-attention data pseudo-ground`"
KIND = ManifestKind("grounded-attention pseudo-labels", 1, "pseudo-labels", HINT)


def shard_name(number: int) -> str:
    """Returns the file name of a shard; names sort in the order of their numbers."""
    return f"pseudo_labels-{number:05d}.parquet"


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads the manifest of finished pseudo-labels.

    Args:
        folder (`Path`): The folder.

    Returns:
        `dict`: The manifest.

    Raises:
        MissingFileError: `folder` holds no pseudo-labels.
        DataError: They are unfinished, or the manifest is damaged or of another version.
    """
    path = folder / MANIFEST
    if path.exists():
        return KIND.read(path)
    if (folder / PARTIAL).exists():
        hint = "run the same command again to finish them"
        raise DataError("the pseudo-labels are unfinished", file=folder, hint=hint)
    raise MissingFileError("no pseudo-labels here", file=folder, expected=f"a folder with {MANIFEST}", hint=HINT)

# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Files of a folder of pseudo-labels: their names, the manifest, checksums."""

from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.files.manifests import DAMAGED_HINT, ManifestKind, is_size

MANIFEST = "pseudo_labels.json"
PARTIAL = "pseudo_labels.partial.json"
PARTS = "parts"
SHARDS = "pseudo_labels-*.parquet"
HINT = "make them with `grounded-attention data pseudo-ground`"
# Counts of `statistics.LabelCounts` that reports and cards read.
COUNTS = ("captions", "captions_skipped", "phrases", "phrases_with_box", "phrases_not_found", "boxes")
KIND = ManifestKind("grounded-attention pseudo-labels", 1, "pseudo-labels", HINT)


def shard_name(number: int) -> str:
    """Returns the file name of a shard; names sort in the order of their numbers."""
    return f"pseudo_labels-{number:05d}.parquet"


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads the manifest of finished pseudo-labels."""
    path = folder / MANIFEST
    if path.exists():
        content = KIND.read(path)
        _check_manifest(content, path)
        return content
    if (folder / PARTIAL).exists():
        hint = "run the same command again to finish them"
        raise DataError("the pseudo-labels are unfinished", file=folder, hint=hint)
    raise MissingFileError("no pseudo-labels here", file=folder, expected=f"a folder with {MANIFEST}", hint=HINT)


def _check_manifest(content: dict[str, Any], path: Path) -> None:
    """Checks the parts of a finished manifest that opening and describing the labels uses."""
    try:
        shards, counts = content["shards"], content["statistics"]
        valid = isinstance(shards, list) and len(shards) > 0
        valid &= all(isinstance(each[name], str) for each in shards for name in ("file", "sha256"))
        valid &= all(is_size(each["bytes"]) for each in shards)
        numbers = [*(counts[name] for name in COUNTS), *counts["phrases_per_caption"].values(), *counts["scores"]]
        valid &= all(type(number) is int and number >= 0 for number in numbers)
        valid &= isinstance(counts["scores"], list) and len(counts["scores"]) > 0
    except (KeyError, TypeError, AttributeError):
        valid = False
    if not valid:
        raise DataError("the manifest is damaged", file=path, hint=DAMAGED_HINT)

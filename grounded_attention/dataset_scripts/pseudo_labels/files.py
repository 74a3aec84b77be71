# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Files of a folder of pseudo-labels: their names, the manifest, checksums."""

from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.files.manifests import ManifestKind, is_size

MANIFEST = "pseudo_labels.json"
PARTS = "parts"
SHARDS = "pseudo_labels-*.parquet"
# Counts of `statistics.LabelCounts` that reports and cards read.
COUNTS = ("captions", "captions_skipped", "phrases", "phrases_with_box", "phrases_not_found", "boxes")
KIND = ManifestKind(
    "grounded-attention pseudo-labels",
    1,
    "pseudo-labels",
    hint="make them with `grounded-attention data pseudo-ground`",
    file=MANIFEST,
    unfinished="run the same command again to finish them",
)
PARTIAL = KIND.partial


def shard_name(number: int) -> str:
    """Returns the file name of a shard; names sort in the order of their numbers."""
    return f"pseudo_labels-{number:05d}.parquet"


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads the manifest of finished pseudo-labels."""
    return KIND.read_finished(folder, _is_valid)


def _is_valid(content: dict[str, Any]) -> bool:
    """Checks the parts of a finished manifest that opening and describing the labels uses."""
    shards, counts = content["shards"], content["statistics"]
    valid = isinstance(shards, list) and len(shards) > 0
    valid &= all(isinstance(each[name], str) for each in shards for name in ("file", "sha256"))
    valid &= all(is_size(each["bytes"]) for each in shards)
    numbers = [*(counts[name] for name in COUNTS), *counts["phrases_per_caption"].values(), *counts["scores"]]
    valid &= all(type(number) is int and number >= 0 for number in numbers)
    return valid and isinstance(counts["scores"], list) and len(counts["scores"]) > 0

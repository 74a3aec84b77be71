# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Files of a region table's folder: their names, the manifest, and safe writing to the disk."""

from pathlib import Path

import pyarrow as pa

from grounded_attention.dataset_scripts.files.errors import refuse_if
from grounded_attention.dataset_scripts.files.manifests import ManifestKind, check_file, is_size
from grounded_attention.dataset_scripts.files.records import MAX_INT32
from grounded_attention.utils.named_types import Fields

from .rows import ARRAYS

MANIFEST = "regions.json"
INDEX = "regions.index.arrow"
SHARDS = "regions-*.arrow"
KIND = ManifestKind(
    "grounded-attention region table",
    1,
    "a region table",
    hint="build one with `grounded-attention regions import`",
    file=MANIFEST,
    unfinished="the command that wrote it was interrupted; run it again, an import with --resume",
)
PARTIAL = KIND.partial
COPY_HINT = "copy the table again, or import the features again"


def shard_name(number: int, process: int = 0) -> str:
    """Returns the file name of a shard of a process; names sort in the order of their numbers."""
    if not process:
        return f"regions-{number:05d}.arrow"
    return f"regions-{number:05d}-{process:05d}.arrow"


def read_manifest(folder: Path) -> Fields:
    """Reads the manifest of a finished table."""
    return KIND.read_finished(folder, _is_valid)


def _is_valid(content: Fields) -> bool:
    """Checks the parts of a finished manifest that opening the table uses."""
    arrays = content["arrays"]
    shards = content["shards"]
    sizes = [content["images"], content["index_bytes"]]
    for shard in shards:
        sizes += [shard["bytes"], shard["rows"]]
    widths = []
    for name, width in arrays.items():
        widths.append(is_size(width, MAX_INT32) if ARRAYS[name][1] else width is None)
    return (
        all(map(is_size, sizes))
        and all(widths)
        and {"boxes", "features"} <= arrays.keys()
        and arrays["boxes"] == 4
        and arrays["features"] == content["feature_size"]
        and content["images"] == sum(shard["rows"] for shard in shards)
        and all(isinstance(text, str) for text in (content["checksum"], *(shard["file"] for shard in shards)))
        and type(content["feature_size"]) is int
    )


def map_file(path: Path, size: int | None = None) -> pa.Buffer:
    """Maps a file into memory as one buffer; refuses one of another size."""
    if size is None:
        size = path.stat().st_size
    check_file(path, size, COPY_HINT)
    refuse_if(not size, "the file is empty", file=path, hint=COPY_HINT)
    with pa.memory_map(str(path)) as source:
        return source.read_buffer(size)


def add_digest(total: int, digest: bytes) -> int:
    """Adds a row's digest to a table's checksum; the order of the rows makes no difference."""
    return (total + int.from_bytes(digest, "big")) % (1 << 8 * len(digest))


def digest_text(total: int) -> str:
    """Formats a table's checksum as in the manifest: 32 hexadecimal digits."""
    return f"{total:032x}"
